"""What routers say to one another, and over what."""
