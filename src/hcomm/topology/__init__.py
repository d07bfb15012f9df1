"""What this machine is: processors, memory, network, accelerators. Reads sysfs and asks the kernel; changes nothing."""
