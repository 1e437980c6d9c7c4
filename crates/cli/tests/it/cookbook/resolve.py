import socket
import sys

for host in sys.argv[1:]:
    try:
        socket.getaddrinfo(host, 80)
    except OSError as error:
        print(host, error)
