"""Studies: grids of trainings and evaluations as Ray tasks, cell by cell, and the report over them."""
