"""What a broker does for a request, one module for each family of request codes."""
