// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// start starts a server at a free port of an address, and returns the address with the port.
func start(t *testing.T, s *Server, host string) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	must.Succeed(t, err)
	address := listener.Addr().String()
	must.Succeed(t, listener.Close())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, address) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for tries := 0; ; tries++ {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			must.Succeed(t, conn.Close())
			return address
		}
		if tries == 500 {
			t.Fatalf("no server: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestEachMeasurementOnLoopback(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		address := start(t, &Server{Key: "secret"}, host)
		for kind := range runs {
			if kind == Steady {
				continue // below
			}
			r, err := Measurement{Kind: kind, Address: address, Key: "secret", Duration: 500 * time.Millisecond}.Run()
			if err != nil || r.Rate <= 0 {
				t.Errorf("%s: %+v, %v", kind, r, err)
			}
			if exchange := kind == RR || kind == CRR || kind == UDPRR; exchange != (r.Median > 0 && r.P99 >= r.Median) {
				t.Errorf("%s: times %+v", kind, r)
			}
			if steady := kind == SteadyFull; steady != (len(r.Seconds) > 0) {
				t.Errorf("%s: seconds %v", kind, r.Seconds)
			}
			if flood := kind == Packets || kind == Full; flood != (r.Size >= smallPacket) {
				t.Errorf("%s: packets of %d bytes", kind, r.Size)
			}
			if r.Lost < 0 || r.Lost >= 1 {
				t.Errorf("%s: lost %v", kind, r.Lost)
			}
		}
	}
}

func TestMessagesOfEachSize(t *testing.T) {
	address := start(t, &Server{Key: "secret"}, "127.0.0.1")
	for _, kind := range []string{RR, UDPRR} {
		for _, size := range []int{64, 128, 512, 1024, 4096} {
			if r, err := (Measurement{Kind: kind, Address: address, Key: "secret", Size: size, Duration: 50 * time.Millisecond}).Run(); err != nil || r.Median <= 0 {
				t.Errorf("%s of %d bytes: %+v, %v", kind, size, r, err)
			}
		}
	}
}

func TestMeasurementsAfterOneThatFails(t *testing.T) {
	good := Measurement{Kind: RR, Address: start(t, &Server{}, "127.0.0.1"), Duration: 10 * time.Millisecond}
	outcomes := RunAll([]Measurement{{Kind: "other"}, good})
	if len(outcomes) != 2 || outcomes[0].Error == "" || outcomes[1].Error != "" || outcomes[1].Median <= 0 {
		t.Errorf("outcomes %+v", outcomes)
	}
}

// TestAnotherKey: a server does nothing for clients that do not have its key.
func TestAnotherKey(t *testing.T) {
	s := &Server{Key: "secret"}
	address := start(t, s, "127.0.0.1")
	for kind := range runs {
		if r, err := (Measurement{Kind: kind, Address: address, Key: "others", Rate: 1e6, Duration: 10 * time.Millisecond}).Run(); err == nil {
			t.Errorf("%s: %+v", kind, r)
		}
	}
	if n := s.packets.Load(); n > 0 || len(s.streams.byNumber) > 0 {
		t.Errorf("it counted %d packets and %d streams", n, len(s.streams.byNumber))
	}
}

// TestEchoesAreNotAnswered: two servers that get each other's echoes must not answer for ever.
func TestEchoesAreNotAnswered(t *testing.T) {
	address := start(t, &Server{}, "127.0.0.1")
	conn, err := net.Dial("udp", address)
	must.Succeed(t, err)
	defer conn.Close()
	must.Value(conn.Write(append([]byte(nil), echoMark...)))
	buffer := make([]byte, 100)
	must.Succeed(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := conn.Read(buffer)
	must.Succeed(t, err)
	must.Value(conn.Write(buffer[:n]))
	must.Succeed(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if n, err := conn.Read(buffer); err == nil {
		t.Errorf("%q answers an echo", buffer[:n])
	}
}

func TestLostDatagrams(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer silent.Close()
	_, err = Measurement{Kind: UDPRR, Address: silent.LocalAddr().String(), Duration: time.Millisecond}.Run()
	if err == nil || !strings.Contains(err.Error(), "no answer to 1 packets") {
		t.Errorf("the error is %v", err)
	}
}

func TestInvalidMeasurements(t *testing.T) {
	for want, m := range map[string]Measurement{
		`no measurement "other"`:              {Kind: "other", Duration: time.Second},
		"the duration must be greater than 0": {Kind: RR},
		"the largest has 65507":               {Kind: RR, Duration: time.Second, Size: 65508},
		"the rate must be greater than 0":     {Kind: Steady, Duration: time.Second},
		"connect:":                            {Kind: RR, Duration: time.Second, Address: "127.0.0.1:1"},
	} {
		if _, err := m.Run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", m, err, want)
		}
	}
}

func TestSteadyOnLoopback(t *testing.T) {
	for _, segmentation := range []bool{false, true} {
		t.Run(fmt.Sprint("segmentation ", segmentation), func(t *testing.T) { testSteady(t, segmentation) })
	}
}

func testSteady(t *testing.T, segmentation bool) {
	const key = "a key that is longer than the keys of kubectl ko"
	s := &Server{Segmentation: segmentation, Key: key}
	address := start(t, s, "127.0.0.1")
	r, err := Measurement{Kind: Steady, Address: address, Duration: 4500 * time.Millisecond, Rate: 1e6, Segmentation: segmentation, Key: key}.Run()
	if err != nil || r.Rate < 0.7e6 || r.Rate > 1.3e6 || len(r.Seconds) < 4 {
		t.Errorf("%+v, %v", r, err)
	}
	if r.Lost > 0.02 { // the key is 0.037 of a packet
		t.Errorf("%.3f of %d packets on loopback are lost", r.Lost, r.Sent)
	}
	if len(s.streams.byNumber) > 0 {
		t.Error("the server keeps a stream that was read")
	}
}
