variable "url" {
  type        = string
  description = "Where the server answers."

  validation {
    condition     = can(regex("^https?://", var.url))
    error_message = "The url must begin with http:// or https://."
  }
}

variable "path" {
  type        = string
  default     = "/healthz"
  description = "Path to ask for."

  validation {
    condition     = startswith(var.path, "/")
    error_message = "The path must begin with a slash."
  }
}

variable "status" {
  type        = number
  default     = 200
  description = "Status the answer must have."
}

variable "within" {
  type        = number
  default     = 10
  description = "Seconds the server has to give that answer."
}

variable "revision" {
  type        = string
  default     = ""
  description = "Any text; asks again when it changes."
}

variable "python" {
  type        = string
  default     = "python3"
  description = "Python interpreter, 3.9 or newer."
}
