output "name" {
  value       = terraform_data.network.output.name
  description = "Name of the network."
}

output "cidr" {
  value       = terraform_data.network.output.cidr
  description = "Address range of the network."
}

output "host" {
  value       = terraform_data.network.output.host
  description = "Address for the server."
}

output "port" {
  value       = terraform_data.network.output.port
  description = "Port for the server."
}

output "subnet_id" {
  value       = "subnet-${substr(terraform_data.network.id, 0, 8)}"
  description = "Identity of the network; another one after each replacement."
}

output "directory" {
  value       = terraform_data.network.output.directory
  description = "Absolute path of the directory for what runs in this network."
}
