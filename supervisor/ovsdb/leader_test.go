// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestAMemberHasLeftOnlyOnceItsServerReportsIt fakes a server that is delayed between its first listener and
// its first row of _Server. A real server cannot be delayed there on purpose.
func TestAMemberHasLeftOnlyOnceItsServerReportsIt(t *testing.T) {
	const added = `{"Database":{"r":{"new":{"name":"OVN_Southbound","leader":true}}}}`
	for name, c := range map[string]struct {
		databases, first string
		left             bool
	}{
		"it has not reported yet": {`["_Server","OVN_Southbound"]`, `{}`, false},
		"it has reported":         {`["_Server","OVN_Southbound"]`, added, false},
		"it has left":             {`["_Server"]`, `{}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(supervisortest.RunDir(t), "db.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			go answer(listener, map[string]string{"list_dbs": c.databases, "monitor": c.first}, `{"id":null,"method":"update","params":[null,`+added+`]}`)
			led := false
			err = watchLeader(t.Context(), socket, "OVN_Southbound", func(leads bool) { led = leads })
			if errors.Is(err, errLeft) != c.left || led == c.left {
				t.Errorf("it leads: %t; %v", led, err)
			}
		})
	}
}

// answer responds to the requests on one connection up to the monitor request, sends one more message, and closes the
// connection.
func answer(listener net.Listener, answers map[string]string, then string) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	decoder := json.NewDecoder(conn)
	for {
		var request struct {
			ID     json.RawMessage
			Method string
		}
		if decoder.Decode(&request) != nil {
			return
		}
		_, _ = conn.Write([]byte(`{"id":` + string(request.ID) + `,"error":null,"result":` + answers[request.Method] + `}`))
		if request.Method == "monitor" {
			_, _ = conn.Write([]byte(then))
			return
		}
	}
}
