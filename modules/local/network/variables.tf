variable "name" {
  type        = string
  description = "Name of the network; names its file in the directory."

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", var.name))
    error_message = "The name must match [a-z0-9][a-z0-9_-]{0,62}."
  }
}

variable "cidr" {
  type        = string
  default     = "127.0.0.0/24"
  description = "Address range within 127.0.0.0/8; the first address is the host."

  validation {
    condition     = can(cidrhost(var.cidr, 1)) && startswith(var.cidr, "127.")
    error_message = "The range must be valid and within 127.0.0.0/8: nothing leaves this machine."
  }
}

variable "port" {
  type        = number
  default     = 0
  description = "Port given to the server; 0 takes one between 20000 and 29999 that follows from the directory this runs in."

  validation {
    condition     = floor(var.port) == var.port && (var.port == 0 || (var.port >= 1024 && var.port <= 65535))
    error_message = "The port must be 0, or a whole number from 1024 to 65535."
  }
}

variable "directory" {
  type        = string
  default     = ""
  description = "Directory for what runs in this network; empty for `run` in the directory this runs in."
}

variable "python" {
  type        = string
  default     = "python3"
  description = "Python interpreter, 3.9 or newer."
}
