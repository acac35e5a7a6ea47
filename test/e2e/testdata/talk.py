# talk.py ADDRESS PORT [ADDRESS PORT]: opens a UDP socket at the first address and port, sends a numbered packet each two milliseconds to the second ones, and
# prints the number and the time of each packet that the socket receives.
import itertools, socket, sys, threading, time

def at(address, port):
    return socket.getaddrinfo(address, int(port), type=socket.SOCK_DGRAM)[0]

family, _, _, _, local = at(*sys.argv[1:3])
end = socket.socket(family, socket.SOCK_DGRAM)
end.bind(local)

def send(to):
    for number in itertools.count():
        try:
            end.sendto(b"%d" % number, to)
        except OSError:
            pass  # nobody has the address for a moment
        time.sleep(0.002)

if len(sys.argv) > 3:
    threading.Thread(target=send, args=(at(*sys.argv[3:5])[4],), daemon=True).start()
while True:
    try:
        number = end.recv(100).decode()
        print(number, time.time(), flush=True)
    except OSError:
        pass
