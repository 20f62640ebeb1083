locals {
  server = terraform_data.server.output
}

output "url" {
  value       = "http://${local.server.host}:${local.server.port}"
  description = "Where the server answers."
  depends_on  = [terraform_data.started]
}

output "host" {
  value       = local.server.host
  description = "Address the server listens on."
  depends_on  = [terraform_data.started]
}

output "port" {
  value       = local.server.port
  description = "Port the server listens on."
  depends_on  = [terraform_data.started]
}

output "server_id" {
  value       = terraform_data.server.id
  description = "Identity of the server, which /healthz repeats; another one after each replacement."
}

output "pid_file" {
  value       = "${local.server.directory}/server-${local.server.name}.pid"
  description = "File with the process id of the server."
}

output "log_file" {
  value       = "${local.server.directory}/server-${local.server.name}.log"
  description = "File with the log of the server."
}
