# An SCTP endpoint. `serve <port>...` answers on these ports. `ask <address> <port>` prints whether that address answers.
#
# On a kernel with SCTP, the client receives a message on an association. On others, both ends use raw sockets: they start an association
# (RFC 9260, section 5.1), INIT and INIT ACK, and do not complete it.
import os, select, socket, struct, sys

SCTP, INIT, INIT_ACK = 132, 1, 2


def kernel_has_sctp():
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, SCTP).close()
        return True
    except OSError:
        return False


def serve(ports):
    listeners = []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for port in ports:
            s = socket.socket(family, socket.SOCK_STREAM, SCTP)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((address, port))
            s.listen()
            listeners.append(s)
    while True:
        for s in select.select(listeners, [], [])[0]:
            association, _ = s.accept()
            association.send(b"answered")
            association.close()


def ask(address, port):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, SCTP)
    s.settimeout(1)
    try:
        s.connect((address, port))
        return s.recv(100).decode()
    except TimeoutError:
        return "silence"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def packet(source, to, tag, kind, own_tag):
    chunk = struct.pack("!BBHIIHHI", kind, 0, 20, own_tag, 65536, 1, 1, 1)
    if kind == INIT_ACK:  # with a State Cookie
        chunk = struct.pack("!BBHIIHHI", kind, 0, 28, own_tag, 65536, 1, 1, 1) + struct.pack("!HHI", 7, 8, 0)
    head = struct.pack("!HHI", source, to, tag)
    return head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk


def parse(data):
    source, to, tag = struct.unpack("!HHI", data[:8])
    good = struct.unpack("<I", data[8:12])[0] == crc32c(data[:8] + bytes(4) + data[12:])
    return source, to, tag, data[12], struct.unpack("!I", data[16:20])[0], good


def receive(s):
    data, peer = s.recvfrom(2048)
    if s.family == socket.AF_INET:  # with its IP header
        data = data[(data[0] & 15) * 4:]
    return parse(data), peer[0]


def serve_raw(ports):
    sockets = [socket.socket(f, socket.SOCK_RAW, SCTP) for f in (socket.AF_INET, socket.AF_INET6)]
    while True:
        for s in select.select(sockets, [], [])[0]:
            (source, to, _, kind, peer_tag, good), peer = receive(s)
            if kind == INIT and good and to in ports:
                s.sendto(packet(to, source, peer_tag, INIT_ACK, 77), (peer, 0))


def ask_raw(address, port):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_RAW, SCTP)
    own, tag = 20000 + os.getpid() % 40000, os.getpid()
    s.sendto(packet(own, port, 0, INIT, tag), (address, 0))
    while select.select([s], [], [], 1)[0]:
        (source, to, got, kind, _, good), peer = receive(s)
        if (source, to, got, kind, peer) == (port, own, tag, INIT_ACK, address):
            return "answered" if good else "answered with a wrong checksum"
    return "silence"


if not kernel_has_sctp():
    serve, ask = serve_raw, ask_raw
if sys.argv[1] == "serve":
    serve([int(port) for port in sys.argv[2:]])
print(ask(sys.argv[2], int(sys.argv[3])))
