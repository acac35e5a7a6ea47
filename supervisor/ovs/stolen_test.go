// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// thief has the key of a node.
type thief struct {
	dir, trust string
}

// try sends operations to a port and returns why they failed; empty if they succeeded.
func (k thief) try(t *testing.T, port int, operations ...string) string {
	t.Helper()
	database := "OVN_Southbound"
	if port == 6641 {
		database = "OVN_Northbound"
	}
	argv := append(supervisortest.Program(t, "usr/bin/ovsdb-client"), "--private-key="+filepath.Join(k.dir, "tls.key"),
		"--certificate="+filepath.Join(k.dir, "tls.crt"), "--ca-cert="+k.trust, "--timeout=10", "transact",
		fmt.Sprintf("ssl:127.0.0.1:%d", port), fmt.Sprintf("[%q,%s]", database, strings.Join(operations, ",")))
	output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return "no connection: " + string(output)
	}
	var results []struct {
		Error   string
		Details string
		Count   *int
		Rows    *[]json.RawMessage
	}
	if err := json.Unmarshal(output, &results); err != nil {
		t.Fatalf("%s: %v", output, err)
	}
	for _, r := range results {
		if r.Error != "" {
			return r.Error + ": " + r.Details
		}
		if r.Count != nil && *r.Count == 0 || r.Rows != nil && len(*r.Rows) == 0 {
			t.Fatalf("%s: there is no such row: this proves nothing", operations)
		}
	}
	return ""
}

// handshake returns why the server of a port refuses a connection with this TLS version and key; nil if it accepts. A TLS 1.2
// server has verified the client's certificate when the handshake ends.
func (k thief) handshake(t *testing.T, port int, version uint16) error {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(k.dir, "tls.crt"), filepath.Join(k.dir, "tls.key"))
	must.Succeed(t, err)
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
	must.Succeed(t, err)
	defer conn.Close()
	must.Succeed(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	return tls.Client(conn, &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: version, MaxVersion: version, InsecureSkipVerify: true, // the server decides here
	}).HandshakeContext(t.Context())
}

func registration(node, address string) []string {
	return []string{
		fmt.Sprintf(`{"op":"insert","table":"Encap","uuid-name":"e","row":{"type":"geneve","ip":%q,"chassis_name":%q}}`, address, node),
		fmt.Sprintf(`{"op":"insert","table":"Chassis","row":{"name":%q,"hostname":%q,"encaps":["named-uuid","e"]}}`, node, node),
		fmt.Sprintf(`{"op":"insert","table":"Chassis_Private","row":{"name":%q}}`, node),
	}
}

// uuidIn returns the UUID of the row in the southbound database whose column has this value.
func uuidIn(t *testing.T, socket, table, column, value string) (string, error) {
	t.Helper()
	return uuidOf(t, socket, table, []string{column, "==", value})
}

// uuidOf returns the UUID of the only row of a southbound table that meets the conditions.
func uuidOf(t *testing.T, socket, table string, where ...[]string) (string, error) {
	t.Helper()
	conn, err := jsonrpc.Dial(t.Context(), socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var answer []struct {
		Rows []struct {
			UUID []string `json:"_uuid"`
		}
	}
	err = conn.Call("transact", []any{"OVN_Southbound", map[string]any{
		"op": "select", "table": table, "where": append([][]string{}, where...),
	}}, &answer)
	if err != nil {
		return "", err
	}
	if len(answer[0].Rows) != 1 {
		return "", fmt.Errorf("%s has %d rows with %v", table, len(answer[0].Rows), where)
	}
	return answer[0].Rows[0].UUID[1], nil
}

// TestAStolenNodeKey verifies the statements of docs/operations/security.md about a stolen node key, with real servers and northd's roles.
func TestAStolenNodeKey(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := nodetest.Wire(t)
	c := startCentral(t)
	trust := filepath.Join(t.TempDir(), "ca.crt")
	must.Succeed(t, os.WriteFile(trust, c.servers.PEM, 0o600))
	victim := thief{c.chassis.TLSDir(t, "node-1", nil), trust}
	stolen := thief{c.chassis.TLSDir(t, "node-2", nil), trust}
	northbound, err := jsonrpc.Dial(t.Context(), filepath.Join(filepath.Dir(c.southbound), "ovnnb_db.sock"))
	must.Succeed(t, err)
	defer northbound.Close()
	var made json.RawMessage
	must.Succeed(t, northbound.Call("transact", []any{
		"OVN_Northbound",
		map[string]any{"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "p", "row": map[string]any{"name": "pod"}},
		map[string]any{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": "s", "ports": []string{"named-uuid", "p"}}},
	}, &made))
	for i, k := range []thief{victim, stolen} {
		node := fmt.Sprintf("node-%d", i+1)
		supervisortest.Eventually(t, node+" registers", func() error { // succeeds once northd has created the roles
			if why := k.try(t, 6642, registration(node, fmt.Sprintf("192.0.2.%d", i+1))...); why != "" {
				return errors.New(why)
			}
			return nil
		})
	}
	ofVictim, ofPod := `"where":[["name","==","node-1"]]`, `"where":[["logical_port","==","pod"]]`
	own, datapath := "", ""
	supervisortest.Eventually(t, "northd makes the port's row", func() (err error) {
		own, err = uuidIn(t, c.southbound, "Chassis", "name", "node-2")
		_, portErr := uuidIn(t, c.southbound, "Port_Binding", "logical_port", "pod")
		var datapathErr error
		datapath, datapathErr = uuidOf(t, c.southbound, "Datapath_Binding") // of the only logical switch
		return errors.Join(err, portErr, datapathErr)
	})
	const refused, noConnection = "permission error", "no connection"
	for _, attempt := range []struct {
		name string
		port int
		ops  string
		want string // a prefix of the answer; empty if the operation is allowed
	}{
		{"to write the northbound database", 6641, `{"op":"insert","table":"Logical_Switch","row":{"name":"mine"}}`, noConnection},
		{"to change another chassis", 6642, `{"op":"update","table":"Chassis",` + ofVictim + `,"row":{"external_ids":["map",[["is","mine"]]]}}`, refused},
		{"to delete another chassis", 6642, `{"op":"delete","table":"Chassis",` + ofVictim + `}`, refused},
		{"to change another's private row", 6642, `{"op":"update","table":"Chassis_Private",` + ofVictim + `,"row":{"nb_cfg":7}}`, refused},
		{"to move another's tunnels", 6642, `{"op":"update","table":"Encap","where":[["chassis_name","==","node-1"]],"row":{"ip":"192.0.2.66"}}`, refused},
		{"to register a chassis of another name", 6642, strings.Join(registration("node-3", "192.0.2.3"), ","), refused},
		{"to write logical flows", 6642, `{"op":"delete","table":"Logical_Flow","where":[["table_id","==",0]]}`, refused},
		{"to change what northd says", 6642, `{"op":"update","table":"SB_Global","where":[],"row":{"nb_cfg":7}}`, refused},
		{"to give itself rights", 6642, `{"op":"delete","table":"RBAC_Role","where":[]}`, refused},
		{"to open a listener without a role", 6642, `{"op":"insert","table":"Connection","row":{"target":"pssl:7000"}}`, refused},
		{"to change addresses of a port", 6642, `{"op":"update","table":"Port_Binding",` + ofPod + `,"row":{"mac":"02:00:00:00:00:66 10.0.0.66"}}`, refused},
		{"to delete a port", 6642, `{"op":"delete","table":"Port_Binding",` + ofPod + `}`, refused},
		{"to insert an IGMP group of another chassis", 6642, `{"op":"insert","table":"IGMP_Group","row":{"address":"239.0.0.1","chassis_name":"node-1"}}`, refused},
		{"to change its own chassis", 6642, `{"op":"update","table":"Chassis","where":[["name","==","node-2"]],"row":{"external_ids":["map",[["is","mine"]]]}}`, ""},
		// These operations stay possible in OVN 25.03.
		{"to say that a port of another is up", 6642, `{"op":"update","table":"Port_Binding",` + ofPod + `,"row":{"up":true}}`, ""},
		{"to bind a port of another", 6642, `{"op":"update","table":"Port_Binding",` + ofPod + `,"row":{"chassis":["uuid","` + own + `"]}}`, ""},
		{"to insert a MAC binding", 6642, `{"op":"insert","table":"MAC_Binding","row":{"logical_port":"pod","ip":"10.0.0.9","mac":"02:00:00:00:00:66",` +
			`"datapath":["uuid","` + datapath + `"]}}`, ""},
		{"to insert an FDB entry", 6642, `{"op":"insert","table":"FDB","row":{"mac":"02:00:00:00:00:66","dp_key":1,"port_key":1}}`, ""},
		{"to insert an IGMP group", 6642, `{"op":"insert","table":"IGMP_Group","row":{"address":"239.0.0.1","datapath":["uuid","` + datapath + `"],` +
			`"chassis":["uuid","` + own + `"],"chassis_name":"node-2"}}`, ""},
		{"to take an encapsulation address that is free", 6642, `{"op":"update","table":"Encap","where":[["chassis_name","==","node-2"]],"row":{"ip":"192.0.2.77"}}`, ""},
		{"to read the southbound database", 6642, `{"op":"select","table":"Port_Binding",` + ofPod + `}`, ""},
		// The guard closes this port.
		{"to write without a role", 6649, `{"op":"update","table":"SB_Global","where":[],"row":{"external_ids":["map",[["thief","was here"]]]}}`, ""},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			why := stolen.try(t, attempt.port, attempt.ops)
			if !strings.HasPrefix(why, attempt.want) || attempt.want == "" && why != "" {
				t.Errorf("got %q, want %q", why, attempt.want)
			}
		})
	}
	server := thief{c.servers.TLSDir(t, "another-server", nil), trust}
	t.Run("to join the Raft of the northbound database", func(t *testing.T) {
		if why := server.handshake(t, 6643, tls.VersionTLS12); why != nil {
			t.Fatalf("a server is refused, too: %v", why)
		}
		if why := stolen.handshake(t, 6643, tls.VersionTLS12); why == nil {
			t.Error("it is not refused")
		}
	})
	t.Run("TLS older than 1.2", func(t *testing.T) {
		for _, port := range []int{6641, 6642, 6643, 6644} {
			if why := server.handshake(t, port, tls.VersionTLS12); why != nil {
				t.Fatalf("port %d refuses TLS 1.2: %v", port, why)
			}
			for _, old := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
				if why := server.handshake(t, port, old); why == nil {
					t.Errorf("port %d accepts %s", port, tls.VersionName(old))
				}
			}
		}
	})
	t.Run("to reach the port without a role from its own node", func(t *testing.T) {
		if open := reach(t, there, "192.0.2.1", []int{6641, 6642, 6649}); len(open) != 3 {
			t.Errorf("open without the guard are %v", open)
		}
		cluster := c.cluster.DeepCopy()
		cluster.Status.Clients = []string{"127.0.0.1"}
		var g guard
		g.follow(cluster, "node-1")
		must.Succeed(t, g.apply(t.Context()))
		if open := reach(t, there, "192.0.2.1", []int{6641, 6642, 6649}); !slices.Equal(open, []int{6642}) {
			t.Errorf("open are %v, want the one for nodes alone", open)
		}
	})
}
