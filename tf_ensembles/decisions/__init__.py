"""What one does with an uncertainty: calibrate, promise sets, abstain, spot what is foreign, ask for labels."""
