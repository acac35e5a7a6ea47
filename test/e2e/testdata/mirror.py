# Datagrams with numbers, whose copies the specs of mirrors count.
#
#   mirror.py send ADDRESS PORT TAG PER_SECOND COUNT   sends COUNT datagrams, or until the file STOP exists, and prints how many it has sent
#   mirror.py sink PORT                                receives until STOP exists, and prints for each tag how many different numbers it has received, then done
import os, socket, sys, time

STOP = "/tmp/mirror-stop"

def send(address, port, tag, rate, count):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.connect((address, port))
    start, sent = time.monotonic(), 0
    while sent < count and not os.path.exists(STOP):
        try:
            s.send(b"kiln-mirror %s %d " % (tag.encode(), sent))
        except ConnectionRefusedError: # an answer to an earlier datagram; this one was not sent
            continue
        sent += 1
        time.sleep(max(0, start + sent / rate - time.monotonic()))
    print(sent)

def sink(port):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind(("::", port))
    s.settimeout(0.2)
    seen = {}
    while True:
        try:
            fields = s.recv(200).split()
            seen.setdefault(fields[1].decode(), set()).add(int(fields[2]))
        except socket.timeout:
            if os.path.exists(STOP):
                break
    for tag in seen:
        print(tag, len(seen[tag]))
    print("done")

if sys.argv[1] == "send":
    send(sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]), int(sys.argv[6]))
else:
    sink(int(sys.argv[2]))
