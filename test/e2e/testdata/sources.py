# sources.py receive ADDRESS PORT: prints `NAME NUMBER SOURCE` of each packet of a sender.
# sources.py send NAME PORT ADDRESS…: sends a packet with its name and the next number to each address, each 100 milliseconds.
import socket, sys, time

def at(address, port):
    return socket.getaddrinfo(address, int(port), type=socket.SOCK_DGRAM)[0]

if sys.argv[1] == "receive":
    family, _, _, _, local = at(*sys.argv[2:4])
    end = socket.socket(family, socket.SOCK_DGRAM)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    end.bind(local)
    while True:
        data, source = end.recvfrom(200)
        print(data.decode(), source[0], flush=True)

name, port = sys.argv[2:4]
number = 0
while True:
    number += 1
    for address in sys.argv[4:]:
        family, _, _, _, to = at(address, port)
        with socket.socket(family, socket.SOCK_DGRAM) as end:  # a new connection each time
            try:
                end.sendto(f"{name} {number}".encode(), to)
            except OSError:
                pass  # no route for a moment
    time.sleep(0.1)
