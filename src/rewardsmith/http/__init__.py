"""Requests over HTTP: one client with bounds, typed errors, URLs without secrets. For models, services and rewards."""
