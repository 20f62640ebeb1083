"""
Modules and blueprints that several suites use.
"""

from __future__ import annotations

#: Keeps a value, and runs a command when it is made.
COMMAND_MODULE = """
    variable "value" { type = string }
    variable "command" {
      type    = string
      default = ":"
    }
    resource "terraform_data" "this" {
      input = var.value
      provisioner "local-exec" { command = var.command }
    }
"""

#: A step whose provider waits for the output of another.
REGIONS = """
    version: 1
    name: regions
    steps:
      region:
        module: ../fixtures/shared/object
        inputs: {name: region, value: here}
      server:
        module: ../modules/server
        inputs: {name: web}
        providers:
          fakecloud: {region: "${steps.region.outputs.value}"}
"""

#: A step whose records lie in the store ``url``.
ONE_SERVER = """
    version: 1
    name: one
    operations: {{url: "{url}"}}
    steps:
      web: {{module: ../modules/server, inputs: {{name: web, size: {size}}}}}
"""
