// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// serve sends a greeting and messages in hexadecimal to a client, and returns the path of its socket.
func serve(t *testing.T, messages ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener := must.Value(net.Listen("unix", path))
	t.Cleanup(func() { must.Succeed(t, listener.Close()) })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		const greeting = "04000008 00000000"
		for _, message := range append([]string{greeting}, messages...) {
			_, _ = conn.Write(must.Value(hex.DecodeString(strings.ReplaceAll(message, " ", ""))))
		}
		_, _ = io.Copy(io.Discard, conn)
	}()
	return path
}

// Parts of replies: a meter with one band that has dropped 5 packets.
const meter7 = "00000007 0038 000000000000 00000000 0000000000000009 0000000000000300 00000001 00000000 0000000000000005 0000000000000200"

func TestDroppedPackets(t *testing.T) {
	for _, c := range []struct {
		name, reply string
		want        map[uint32]uint64
	}{
		{"no meters", "04130010 00000001 0009 0000 00000000", map[uint32]uint64{}},
		{"one meter", "04130048 00000001 0009 0000 00000000" + meter7, map[uint32]uint64{7: 5}},
		{"two replies, and a request of the bridge", "04130048 00000001 0009 0001 00000000" + meter7 + "04020008 00000063" +
			"04130010 00000001 0009 0000 00000000", map[uint32]uint64{7: 5}},
		{"an error", "0401000c 00000001 0001 0001", nil},
		{"a short reply", "0413000a 00000001 0009", nil},
		{"a meter that is cut off", "04130018 00000001 0009 0000 00000000 0000000700380000", nil},
		{"a meter longer than the reply", "04130038 00000001 0009 0000 00000000" + strings.Replace(meter7, "0038", "0048", 1)[:90], nil},
		{"a message without a header", "04130004 00000001", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			conn := must.Value(Dial(ctx, serve(t, c.reply)))
			defer conn.Close()
			got, err := conn.Dropped()
			if (err == nil) != (c.want != nil) || err == nil && !maps.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestARefusedMeterIsAnError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn := must.Value(Dial(ctx, serve(t, "0401000c 00000001 000c 0001")))
	defer conn.Close()
	if err := conn.Add([]Meter{{ID: 1, Packets: true, Bands: []Band{{Rate: 10}}}}); err == nil {
		t.Error("no error")
	}
}

func TestABridgeThatDoesNotAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	conn := must.Value(Dial(ctx, serve(t)))
	defer conn.Close()
	if _, err := conn.Dropped(); err == nil || !errors.As(err, new(net.Error)) {
		t.Errorf("the error is %v", err)
	}
}
