"""Data that passes between rooms: jobs, sites, plans, images and runs."""
