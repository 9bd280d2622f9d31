"""The broker at the name servers, and the routes that it learns from them."""
