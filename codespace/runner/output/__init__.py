"""What a process wrote: its last bytes in memory, more of them in a spool on disk, read by cursor."""
