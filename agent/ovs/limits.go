// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Limits of pods in the kernel's datapath. Traffic to a pod passes a QoS of the port: the kernel's qdisc of the host's end of the veth. Traffic from a pod
// passes the policing of the interface.
//
// The userspace datapath has meters of OVN instead, for both directions (package translate). ovs-vswitchd sends to all veths of the node through one socket
// there, and a packet that waits in a qdisc counts to the send buffer of that socket: the queue of one flooded pod would make ovs-vswitchd drop the packets to
// all pods of the node.

// Keys of external_ids of QoS and Queue rows. keyLogicalPort and keyPod are Kube-OVN's. keyPort is the name of the port, by which the client finds the rows.
const (
	keyPod  = "pod"
	keyPort = "port"
)

// Types of QoS rows (ovs-vswitchd.conf.db(5)).
const (
	qosRate  = "linux-htb"
	qosNetem = "linux-netem"
)

// keySweep is the key of requests that delete unused QoS and Queue rows. No port has this name.
const keySweep = "Open_vSwitch/QoS"

// Limit makes the limits of the port of a pod exactly these, in one transaction. It does nothing if they are, or if the pod has no such port.
func (b *Bridge) Limit(ctx context.Context, name string, l limits.Port) error {
	err := b.commit(ctx, []string{name}, func(ctx context.Context, prefix string) (change, error) { return b.relimit(ctx, name, l, prefix) })
	if err != nil {
		return fmt.Errorf("limit port %s: %w", name, err)
	}
	return nil
}

// Limited reports whether the port of a pod has exactly these limits. It is true if the pod has no such port.
func (b *Bridge) Limited(ctx context.Context, name string, l limits.Port) (bool, error) {
	c, err := b.relimit(ctx, name, l, "")
	return c.empty(), err
}

// relimit returns the change of an existing port.
func (b *Bridge) relimit(ctx context.Context, name string, l limits.Port, prefix string) (change, error) {
	iface, err := b.iface(ctx, name)
	if err != nil || iface == nil {
		return change{}, err
	}
	a, ours := attachmentOf(iface)
	if !ours {
		return change{}, nil
	}
	c := change{}
	err = b.limit(ctx, &c, a, iface, l, prefix)
	return c, err
}

// limit adds to c the change of the limits of an existing port.
func (b *Bridge) limit(ctx context.Context, c *change, a Attachment, iface *vswitch.Interface, l limits.Port, prefix string) error {
	port := &vswitch.Port{Name: a.Name}
	if err := b.get(ctx, port); err != nil {
		return fmt.Errorf("read port %s: %w", a.Name, err)
	}
	userspace, err := b.Userspace(ctx)
	if err != nil {
		return err
	}
	policed := &vswitch.Interface{}
	police(policed, l.Egress, userspace)
	if policed.IngressPolicingRate != iface.IngressPolicingRate || policed.IngressPolicingBurst != iface.IngressPolicingBurst {
		if err := c.add(b.client.Where(iface).Update(policed, &policed.IngressPolicingRate, &policed.IngressPolicingBurst)); err != nil {
			return err
		}
	}
	queue := shapeOf(a, l, userspace)
	if queue == nil && port.QOS == nil {
		return nil // most pods have no limit; SweepLimits deletes rows that no port uses
	}
	rows, err := b.qosRows(ctx, a.Name)
	if err != nil {
		return err
	}
	want := &vswitch.Port{QOS: port.QOS}
	if queue != nil {
		want.QOS, err = b.shape(c, rows, *queue, prefix)
	} else {
		if port.QOS != nil && rows.has(*port.QOS) { // a QoS of another program stays
			want.QOS = nil
		}
		err = b.discard(c, rows.qos, rows.queues)
	}
	if err != nil || equal(port.QOS, want.QOS) {
		return err
	}
	return c.add(b.client.Where(port).Update(want, &want.QOS))
}

// limitNew adds to c the limits of a port that is about to be inserted.
func (b *Bridge) limitNew(ctx context.Context, c *change, a Attachment, iface *vswitch.Interface, port *vswitch.Port, prefix string) error {
	if a.Limits == nil || *a.Limits == (limits.Port{}) {
		return nil
	}
	userspace, err := b.Userspace(ctx)
	if err != nil {
		return err
	}
	police(iface, a.Limits.Egress, userspace)
	queue := shapeOf(a, *a.Limits, userspace)
	if queue == nil {
		return nil
	}
	rows, err := b.qosRows(ctx, a.Name)
	if err != nil {
		return err
	}
	port.QOS, err = b.shape(c, rows, *queue, prefix)
	return err
}

// police sets the columns of an interface that limit the traffic from a pod, in kbit/s and kbit.
func police(iface *vswitch.Interface, rate limits.Rate, userspace bool) {
	if !userspace {
		iface.IngressPolicingRate, iface.IngressPolicingBurst = limits.Kilo(rate.Bits), limits.Kilo(rate.Burst)
	}
}

// shaping is the desired content of the QoS row of a port, and of its queue.
type shaping struct {
	kind          string
	config, queue map[string]string // queue is nil if the kind has none
	ids           map[string]string
}

// shapeOf returns the QoS of a port; nil if it needs none, as always in the userspace datapath.
func shapeOf(a Attachment, l limits.Port, userspace bool) *shaping {
	if userspace {
		return nil
	}
	ids := map[string]string{keyLogicalPort: a.LogicalPort, keyPod: a.PodNamespace + "/" + a.PodName, keyPort: a.Name, keyVendor: vendor}
	switch {
	case l.Ingress != limits.Rate{}:
		rate := strconv.FormatUint(l.Ingress.Bits, 10)
		return &shaping{
			kind: qosRate, ids: ids,
			config: map[string]string{"max-rate": rate},
			// The default class. min-rate is its guaranteed rate, max-rate the rate with borrowed tokens.
			queue: map[string]string{"min-rate": rate, "max-rate": rate, "burst": strconv.FormatUint(l.Ingress.Burst, 10)},
		}
	case l.Netem != limits.Netem{}:
		config := map[string]string{}
		for key, value := range map[string]int64{
			"latency": l.Netem.Latency.Microseconds(), "jitter": l.Netem.Jitter.Microseconds(), "limit": int64(l.Netem.Packets), "loss": int64(l.Netem.Loss),
		} {
			if value > 0 {
				config[key] = strconv.FormatInt(value, 10)
			}
		}
		return &shaping{kind: qosNetem, ids: ids, config: config}
	}
	return nil
}

// netemOf reads what shapeOf has written.
func netemOf(config map[string]string) limits.Netem {
	number := func(key string) int { n, _ := strconv.Atoi(config[key]); return n }
	return limits.Netem{
		Latency: time.Duration(number("latency")) * time.Microsecond, Jitter: time.Duration(number("jitter")) * time.Microsecond,
		Packets: number("limit"), Loss: number("loss"),
	}
}

// limitRows are the QoS and Queue rows of a port, normally at most one of each.
type limitRows struct {
	qos    []vswitch.QoS
	queues []vswitch.Queue
}

func (r limitRows) has(qos string) bool {
	return slices.ContainsFunc(r.qos, func(row vswitch.QoS) bool { return row.UUID == qos })
}

func (b *Bridge) qosRows(ctx context.Context, port string) (limitRows, error) {
	var rows limitRows
	ids := map[string]string{keyPort: port}
	if err := b.list(ctx, b.client.Where(&vswitch.QoS{ExternalIDs: ids}), &rows.qos); err != nil && !isNotFound(err) {
		return rows, fmt.Errorf("look for the QoS of port %s: %w", port, err)
	}
	if err := b.list(ctx, b.client.Where(&vswitch.Queue{ExternalIDs: ids}), &rows.queues); err != nil && !isNotFound(err) {
		return rows, fmt.Errorf("look for the queues of port %s: %w", port, err)
	}
	return rows, nil
}

// shape adds to c the changes that make the QoS of a port as desired, and returns its UUID. Existing rows are changed, so that the kernel changes its classes
// and drops no packet.
func (b *Bridge) shape(c *change, rows limitRows, want shaping, prefix string) (*string, error) {
	qos := vswitch.QoS{Type: want.kind, OtherConfig: want.config, ExternalIDs: want.ids, Queues: map[int]string{}}
	spare := rows.queues
	if want.queue != nil {
		queue, err := b.queue(c, rows.queues, want, prefix)
		if err != nil {
			return nil, err
		}
		qos.Queues[0], spare = queue, spare[min(1, len(spare)):]
	}
	if len(rows.qos) == 0 {
		qos.UUID = prefix + "qos"
		if err := c.add(b.client.Create(&qos)); err != nil {
			return nil, err
		}
		return &qos.UUID, b.discard(c, nil, spare)
	}
	have := &rows.qos[0]
	qos.UUID = have.UUID
	if have.Type != qos.Type || !maps.Equal(have.OtherConfig, qos.OtherConfig) || !maps.Equal(have.ExternalIDs, qos.ExternalIDs) || !maps.Equal(have.Queues, qos.Queues) {
		if err := c.add(b.client.Where(have).Update(&qos, &qos.Type, &qos.OtherConfig, &qos.ExternalIDs, &qos.Queues)); err != nil {
			return nil, err
		}
	}
	return &qos.UUID, b.discard(c, rows.qos[1:], spare)
}

// queue adds to c the change that makes the first of a port's queues as desired, and returns its UUID.
func (b *Bridge) queue(c *change, rows []vswitch.Queue, want shaping, prefix string) (string, error) {
	queue := vswitch.Queue{OtherConfig: want.queue, ExternalIDs: want.ids}
	if len(rows) == 0 {
		queue.UUID = prefix + "queue"
		return queue.UUID, c.add(b.client.Create(&queue))
	}
	have := &rows[0]
	if maps.Equal(have.OtherConfig, queue.OtherConfig) && maps.Equal(have.ExternalIDs, queue.ExternalIDs) {
		return have.UUID, nil
	}
	return have.UUID, c.add(b.client.Where(have).Update(&queue, &queue.OtherConfig, &queue.ExternalIDs))
}

// discard adds to c the deletion of rows. Both tables are roots: ovsdb-server deletes no row by itself, and refuses to delete one that a port refers to.
func (b *Bridge) discard(c *change, qos []vswitch.QoS, queues []vswitch.Queue) error {
	var rows []model.Model
	for i := range qos {
		rows = append(rows, &qos[i])
	}
	for i := range queues {
		rows = append(rows, &queues[i])
	}
	if len(rows) == 0 {
		return nil
	}
	for _, row := range rows {
		if err := c.add(b.client.Where(row).Delete()); err != nil {
			return err
		}
	}
	return nil
}

// unlimit adds to c the deletion of the rows of a port that is about to be removed.
func (b *Bridge) unlimit(ctx context.Context, c *change, uuid string) error {
	port := &vswitch.Port{UUID: uuid}
	if err := b.get(ctx, port); err != nil {
		if isNotFound(err) {
			return nil
		}
		return fmt.Errorf("read port %s: %w", uuid, err)
	}
	rows, err := b.qosRows(ctx, port.Name)
	if err != nil {
		return err
	}
	if port.QOS != nil && rows.has(*port.QOS) {
		want := &vswitch.Port{}
		if err := c.add(b.client.Where(port).Update(want, &want.QOS)); err != nil {
			return err
		}
	}
	return b.discard(c, rows.qos, rows.queues)
}

// SweepLimits deletes the QoS and Queue rows of pods that no port uses: other programs may remove a port.
func (b *Bridge) SweepLimits(ctx context.Context) error {
	err := b.commit(ctx, []string{keySweep}, func(ctx context.Context, _ string) (change, error) {
		var qos []vswitch.QoS
		var queues []vswitch.Queue
		var ports []vswitch.Port
		for _, rows := range []any{&qos, &queues} {
			if err := b.list(ctx, b.client, rows); err != nil {
				return change{}, err
			}
		}
		if len(qos)+len(queues) == 0 {
			return change{}, nil
		}
		if err := b.list(ctx, b.client, &ports); err != nil {
			return change{}, err
		}
		used := map[string]bool{}
		for _, port := range ports {
			if port.QOS != nil {
				used[*port.QOS] = true
			}
		}
		unused := slices.DeleteFunc(qos, func(row vswitch.QoS) bool {
			if ours := row.ExternalIDs[keyVendor] == vendor && row.ExternalIDs[keyPort] != ""; ours && !used[row.UUID] {
				return false
			}
			for _, queue := range row.Queues {
				used[queue] = true
			}
			return true
		})
		queues = slices.DeleteFunc(queues, func(row vswitch.Queue) bool {
			return used[row.UUID] || row.ExternalIDs[keyVendor] != vendor || row.ExternalIDs[keyPort] == ""
		})
		c := change{}
		return c, b.discard(&c, unused, queues)
	})
	if err != nil {
		return fmt.Errorf("delete limits that no port has: %w", err)
	}
	return nil
}

// LimitedPort is a port of a pod with a limit.
type LimitedPort struct {
	Attachment
	// Qdisc is the kernel's name of the qdisc for packets to the pod: htb or netem; "" without one. Policed: packets from the pod are policed.
	Qdisc   string
	Policed bool
	// Netem is the configuration of netem.
	Netem limits.Netem
}

// LimitedPorts returns the ports of pods with a limit.
func (b *Bridge) LimitedPorts(ctx context.Context) ([]LimitedPort, error) {
	if !b.client.Connected() {
		return nil, ErrDisconnected
	}
	var qos []vswitch.QoS
	if err := b.list(ctx, b.client, &qos); err != nil {
		return nil, fmt.Errorf("read QoS: %w", err)
	}
	kinds, netems := map[string]string{}, map[string]limits.Netem{}
	for _, row := range qos {
		if row.ExternalIDs[keyVendor] != vendor {
			continue
		}
		kinds[row.ExternalIDs[keyPort]] = strings.TrimPrefix(row.Type, "linux-")
		if row.Type == qosNetem {
			netems[row.ExternalIDs[keyPort]] = netemOf(row.OtherConfig)
		}
	}
	var rows []vswitch.Interface
	if err := b.list(ctx, b.client, &rows); err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	var limited []LimitedPort
	for i := range rows {
		if rows[i].IngressPolicingRate == 0 && kinds[rows[i].Name] == "" {
			continue
		}
		if a, ok := attachmentOf(&rows[i]); ok {
			limited = append(limited, LimitedPort{Attachment: a, Qdisc: kinds[a.Name], Policed: rows[i].IngressPolicingRate > 0, Netem: netems[a.Name]})
		}
	}
	return limited, nil
}
