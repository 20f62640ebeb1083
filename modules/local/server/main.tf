# Two objects, because Terraform does not run the destroy provisioners of a tainted one: a start that fails
# taints `started`, and `server` still stops whatever came to life.
resource "terraform_data" "server" {
  input = {
    name      = var.name
    host      = var.host
    port      = var.port
    directory = var.directory
    subnet_id = var.subnet_id
    python    = var.python
  }

  triggers_replace = [var.name, var.host, var.port, var.directory, var.subnet_id]

  provisioner "local-exec" {
    when        = destroy
    interpreter = [self.input.python, "${path.module}/server.py", "stop"]
    command     = jsonencode(merge(self.input, { id = self.id }))
  }
}

resource "terraform_data" "started" {
  triggers_replace = [terraform_data.server.id]

  provisioner "local-exec" {
    interpreter = [var.python, "${path.module}/server.py", "start"]
    command = jsonencode(merge(terraform_data.server.output, {
      id           = terraform_data.server.id
      start_within = var.start_within
    }))
  }
}
