"""Faults in bulk: kills, damaged files, full disks, random command lines, long runs (`make torture`)."""
