# Two objects, because Terraform does not run the destroy provisioners of a tainted one: what fails taints
# `seeded`, and `seed` still removes what was written.
resource "terraform_data" "seed" {
  input = {
    url        = var.url
    server_id  = var.server_id
    admin_user = var.admin_user
    items      = var.items
    python     = var.python
  }

  triggers_replace = [var.url, var.server_id, var.admin_user, var.items]

  provisioner "local-exec" {
    when        = destroy
    interpreter = [self.input.python, "${path.module}/seed.py", "remove"]
    command     = jsonencode(self.input)
  }
}

resource "terraform_data" "seeded" {
  triggers_replace = [terraform_data.seed.id, var.admin_password_version, var.fail]

  # First: is it the right server?
  provisioner "local-exec" {
    interpreter = [var.python, "${path.module}/seed.py", "check"]
    command     = jsonencode(terraform_data.seed.output)
  }

  # The password goes into the environment of this one process, and so into no state, command or output.
  # What this provisioner prints is hidden, except when it fails.
  provisioner "local-exec" {
    interpreter = [var.python, "${path.module}/seed.py", "admin"]
    command     = jsonencode(terraform_data.seed.output)
    environment = { ADMIN_PASSWORD = var.admin_password }
  }

  provisioner "local-exec" {
    interpreter = [var.python, "${path.module}/seed.py", var.fail ? "fail" : "items"]
    command     = jsonencode(terraform_data.seed.output)
  }
}
