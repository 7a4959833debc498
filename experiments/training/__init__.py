"""What every training job shares: one run through Lightning, repeats over seeds, and the files that a job leaves."""
