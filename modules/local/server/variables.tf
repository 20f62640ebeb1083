variable "name" {
  type        = string
  description = "Name of the server; names its files in the directory."

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", var.name))
    error_message = "The name must match [a-z0-9][a-z0-9_-]{0,62}."
  }
}

variable "host" {
  type        = string
  default     = "127.0.0.1"
  description = "Loopback address to listen on."

  validation {
    condition     = startswith(var.host, "127.") && can(cidrhost("${var.host}/32", 0))
    error_message = "The host must be an address within 127.0.0.0/8."
  }
}

variable "port" {
  type        = number
  description = "Port to listen on. A port that another process holds is an error."

  validation {
    condition     = floor(var.port) == var.port && var.port >= 1024 && var.port <= 65535
    error_message = "The port must be a whole number from 1024 to 65535."
  }
}

variable "directory" {
  type        = string
  description = "Absolute path of the directory for the pid file, the log and the data; made if missing."

  validation {
    condition     = startswith(var.directory, "/")
    error_message = "The directory must be an absolute path."
  }
}

variable "subnet_id" {
  type        = string
  default     = ""
  description = "Identity of the network the server stands in; another network means another server."
}

variable "start_within" {
  type        = number
  default     = 20
  description = "Seconds the server has to answer after its start."

  validation {
    condition     = var.start_within > 0
    error_message = "The server needs some time to start."
  }
}

variable "python" {
  type        = string
  default     = "python3"
  description = "Python interpreter, 3.9 or newer."
}
