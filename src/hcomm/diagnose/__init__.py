"""What happened: call sites, and reports that turn a status of the core into an exception naming ranks and lines."""
