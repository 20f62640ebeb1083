output "url" {
  value       = terraform_data.probe.output
  description = "What was asked."
}

output "verdict" {
  value       = "answered ${var.status}"
  description = "What was found, when the probe was made."
  depends_on  = [terraform_data.probe]
}
