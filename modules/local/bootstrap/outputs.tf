output "admin_user" {
  value       = terraform_data.seed.output.admin_user
  description = "Name of the administrator."
  depends_on  = [terraform_data.seeded]
}

output "items" {
  value       = sort(keys(terraform_data.seed.output.items))
  description = "Names of the items the server holds."
  depends_on  = [terraform_data.seeded]
}

output "items_url" {
  value       = "${terraform_data.seed.output.url}/items"
  description = "Where the server lists its items."
  depends_on  = [terraform_data.seeded]
}

output "revision" {
  value       = terraform_data.seeded.id
  description = "Another one after each bootstrap."
}
