"""What a site minimises: cross entropy, the evidential loss and TWEU."""
