locals {
  root = abspath(path.root)
  port = var.port != 0 ? var.port : 20000 + parseint(substr(sha256(local.root), 0, 6), 16) % 10000
}

# The network is a file: it exists outside of Terraform's state.
resource "terraform_data" "network" {
  input = {
    name      = var.name
    cidr      = var.cidr
    host      = cidrhost(var.cidr, 1)
    port      = local.port
    directory = var.directory != "" ? abspath(var.directory) : "${local.root}/run"
    python    = var.python
  }

  # What makes it another network. The rest of the input follows from where this runs.
  triggers_replace = [var.name, var.cidr, var.port, var.directory]

  lifecycle {
    # A network stays where it was made, also when this runs from another directory later.
    ignore_changes = [input]
  }

  provisioner "local-exec" {
    interpreter = [self.input.python, "${path.module}/network.py", "create"]
    command     = jsonencode(self.input)
  }

  provisioner "local-exec" {
    when        = destroy
    interpreter = [self.input.python, "${path.module}/network.py", "delete"]
    command     = jsonencode(self.input)
  }
}
