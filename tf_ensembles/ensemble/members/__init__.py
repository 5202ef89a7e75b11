"""The members of an ensemble: made (`building`), compared (`probe`) and run, all at once (`stack`, `layer_rules`)."""
