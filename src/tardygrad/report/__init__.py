"""Reports: a page of figures and tables on recorded runs; it reads records, nothing else."""
