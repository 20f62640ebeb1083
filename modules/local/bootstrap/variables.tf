variable "url" {
  type        = string
  description = "Where the server answers."

  validation {
    condition     = can(regex("^http://127\\.[0-9.]+:[0-9]+$", var.url))
    error_message = "The url must be http://, a loopback address and a port."
  }
}

variable "server_id" {
  type        = string
  description = "Identity of the server; another server is bootstrapped anew."
}

variable "admin_user" {
  type        = string
  default     = "admin"
  description = "Name of the administrator."
}

variable "admin_password" {
  type        = string
  sensitive   = true
  description = "Password of the administrator. A changed password alone changes nothing: raise admin_password_version too."

  validation {
    condition     = length(var.admin_password) >= 8
    error_message = "The password must have at least 8 characters."
  }
}

variable "admin_password_version" {
  type        = number
  default     = 1
  description = "Raised to set the password once more."
}

variable "items" {
  type        = map(string)
  default     = { welcome = "hello" }
  description = "Items the server holds from the beginning."
}

variable "fail" {
  type        = bool
  default     = false
  description = "Fails after the administrator and the first item are in place."
}

variable "python" {
  type        = string
  default     = "python3"
  description = "Python interpreter, 3.9 or newer."
}
