"""Messages with a delivery time: timer, delivery, recall."""
