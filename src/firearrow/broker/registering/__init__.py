"""Registration with the name servers, and routes from them."""
