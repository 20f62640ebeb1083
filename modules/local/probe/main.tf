# Asks once, when it is created: a plan stays empty until something asked about has changed.
resource "terraform_data" "probe" {
  input            = "${var.url}${var.path}"
  triggers_replace = [var.url, var.path, var.status, var.revision]

  provisioner "local-exec" {
    interpreter = [var.python, "${path.module}/probe.py"]
    command     = jsonencode({ url = self.input, status = var.status, within = var.within })
  }
}
