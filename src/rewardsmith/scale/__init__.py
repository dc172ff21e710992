"""Training beyond one device: verl's workers on Ray as an engine. Nothing else imports ray or verl."""
