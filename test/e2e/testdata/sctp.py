# A minimal SCTP endpoint on raw sockets, for kernels without SCTP. It starts an association (RFC 9260, section 5.1) and does not
# complete it. `serve` answers INIT on every port with INIT ACK. `ask <address> <port>` prints whether that address answers.
import os, select, socket, struct, sys

SCTP, INIT, INIT_ACK = 132, 1, 2


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


def serve():
    sockets = [socket.socket(f, socket.SOCK_RAW, SCTP) for f in (socket.AF_INET, socket.AF_INET6)]
    while True:
        for s in select.select(sockets, [], [])[0]:
            (source, to, _, kind, peer_tag, good), peer = receive(s)
            if kind == INIT and good:
                s.sendto(packet(to, source, peer_tag, INIT_ACK, 77), (peer, 0))


def ask(address, port):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_RAW, SCTP)
    own, tag = 20000 + os.getpid() % 40000, os.getpid()
    s.sendto(packet(own, port, 0, INIT, tag), (address, 0))
    while select.select([s], [], [], 1)[0]:
        (source, to, got, kind, _, good), peer = receive(s)
        if (source, to, got, kind, peer) == (port, own, tag, INIT_ACK, address):
            return "answered" if good else "answered with a wrong checksum"
    return "silence"


print(serve() if sys.argv[1] == "serve" else ask(sys.argv[2], int(sys.argv[3])))
