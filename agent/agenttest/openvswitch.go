// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// run starts a daemon of Open vSwitch: tests of the agent run the real one.
func (n *Node) run(program string, args ...string) *daemontest.Daemon {
	n.Helper()
	line := append(supervisortest.Program(n.TB, program), args...)
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "OVS_RUNDIR="+n.dir, "OVS_LOGDIR="+n.dir, "OVS_DBDIR="+n.dir, "OVS_SYSCONFDIR="+n.dir,
		"OVS_PKGDATADIR="+filepath.Dir(supervisortest.File(n.TB, "usr/share/openvswitch/vswitch.ovsschema")))
	name := filepath.Base(program)
	return daemontest.Start(n.Root, name, filepath.Join(n.dir, name+".log"), command)
}

// startOVS creates the database, and starts Open vSwitch with an integration bridge. It connects to the bridge and does the part of ovn-controller.
func (n *Node) startOVS() {
	n.Helper()
	supervisortest.CreateSwitchDatabase(n.TB, filepath.Join(n.dir, "conf.db"))
	n.StartDatabase()
	n.VSCtl("--no-wait", "--", "init", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-encap-ip=192.168.77.1", "--",
		"add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev", "fail_mode=standalone")
	n.StartVSwitchd()
	var err error
	n.OVS, err = ovsdbclient.VSwitch(n.Context(), ovsdbclient.Options{Endpoints: []string{"unix:" + n.Options.OVSSocket}, Log: logr.Discard()})
	must.Succeed(n.TB, err)
	n.Cleanup(n.OVS.Close)
	n.playOVNController()
}

// StartDatabase starts ovsdb-server and waits until it listens.
func (n *Node) StartDatabase() {
	n.Helper()
	n.Database = n.run("usr/sbin/ovsdb-server", filepath.Join(n.dir, "conf.db"), "--remote=punix:"+n.Options.OVSSocket, "--no-chdir",
		"--unixctl="+filepath.Join(n.dir, "db.ctl"))
	n.Eventually("ovsdb-server listens", func() bool {
		connection, err := net.Dial("unix", n.Options.OVSSocket)
		return err == nil && connection.Close() == nil
	})
}

// StartVSwitchd starts ovs-vswitchd with its control socket where the agent looks for it, and does not wait.
func (n *Node) StartVSwitchd() {
	n.Helper()
	n.VSwitchd = n.run("usr/lib/openvswitch-switch/ovs-vswitchd", "unix:"+n.Options.OVSSocket, "--no-chdir", "--pidfile", "--overwrite-pidfile")
}

// PretendKernel lets an agent that starts later read in the database that the kernel forwards packets, whatever Open vSwitch does: machines that run tests have
// no module for it. The agent limits pods by their interfaces then.
func (n *Node) PretendKernel() {
	n.Helper()
	n.relay = filepath.Join(n.dir, "relay.sock")
	listener, err := net.Listen("unix", n.relay)
	must.Succeed(n.TB, err)
	n.Root.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			agent, err := listener.Accept()
			if err != nil {
				return
			}
			go pretendKernel(agent, n.Options.OVSSocket)
		}
	}()
}

// pretendKernel relays a connection to a database, with another datapath in what the server sends.
func pretendKernel(agent net.Conn, socket string) {
	defer agent.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, agent)
		_ = server.Close()
	}()
	messages := json.NewDecoder(server)
	for {
		var message json.RawMessage
		if err := messages.Decode(&message); err != nil {
			return
		}
		if _, err := agent.Write(bytes.ReplaceAll(message, []byte(`"datapath_type":"netdev"`), []byte(`"datapath_type":"system"`))); err != nil {
			return
		}
	}
}

// playOVNController simulates ovn-controller: it sets ovn-installed on every interface that has a device and a logical port.
func (n *Node) playOVNController() {
	install := func(row model.Model) {
		iface, ok := row.(*vswitch.Interface)
		if !ok || n.Idle.Load() || iface.ExternalIDs["iface-id"] == "" || iface.ExternalIDs["ovn-installed"] != "" || iface.Ofport == nil || *iface.Ofport <= 0 {
			return
		}
		iface = &vswitch.Interface{UUID: iface.UUID}
		operations, err := n.OVS.Where(iface).Mutate(iface, model.Mutation{
			Field: &iface.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{"ovn-installed": "true"},
		})
		if err == nil {
			_, _ = n.OVS.Transact(context.Background(), operations...)
		}
	}
	n.OVS.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, row model.Model) { install(row) },
		UpdateFunc: func(_ string, _, row model.Model) { install(row) },
	})
}

// Interfaces returns the rows of containers by name. It reads them from the database, because this client's replica may lag behind the
// agent's.
func (n *Node) Interfaces() map[string]vswitch.Interface {
	n.Helper()
	results, err := n.OVS.Transact(n.Context(), ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: "Interface", Columns: []string{"_uuid", "name", "external_ids"},
	})
	must.Succeed(n.TB, err)
	out := map[string]vswitch.Interface{}
	for _, row := range results[0].Rows {
		iface := vswitch.Interface{UUID: row["_uuid"].(ovsdb.UUID).GoUUID, Name: row["name"].(string), ExternalIDs: map[string]string{}}
		for key, value := range row["external_ids"].(ovsdb.OvsMap).GoMap {
			iface.ExternalIDs[key.(string)] = value.(string)
		}
		if iface.ExternalIDs["container_id"] != "" {
			out[iface.Name] = iface
		}
	}
	return out
}

// Detach removes a port without the agent.
func (n *Node) Detach(name string) {
	n.Helper()
	n.VSCtl("del-port", "br-int", name)
}

// Touch updates a port in the database, so that the simulated ovn-controller processes it again.
func (n *Node) Touch(name string) {
	n.Helper()
	n.VSCtl("set", "Interface", name, "external_ids:touched=yes")
}

// VSCtl runs ovs-vsctl(8) with arguments, as another program or an administrator does while the agent runs. The test ends if the program fails.
func (n *Node) VSCtl(args ...string) {
	n.Helper()
	line := append(supervisortest.Program(n.TB, "usr/bin/ovs-vsctl"), "--db=unix:"+n.Options.OVSSocket, "--timeout=60")
	line = append(line, args...)
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		n.Fatalf("ovs-vsctl %v: %v\n%s", args, err, out)
	}
}
