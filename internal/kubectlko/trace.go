// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/trace"
	"github.com/kiln-net/kiln/internal/trace/reader"
)

// cannotTell is the exit code of a question without an answer. 1 means that the packet is dropped, so that errors need another code.
const cannotTell = 2

const traceHelp = `It reads the API only, with your own permissions, and follows the first packet of a connection through the rules that Kiln makes of these objects. The last lines
name the object that stops the packet, and the change that lets it pass. --raw prints the output of ovn-trace and of ofproto/trace on the sender's node instead.

A and B are one of
  [NAMESPACE/]POD       a pod, of namespace "default" without NAMESPACE; as B also a Service
  node//NODE            a node
  service/[NAMESPACE/]SERVICE, or SERVICE.NAMESPACE.svc
  ADDRESS               an address of a pod, a node, a Service, or of a host outside. As B it is resolved in the Vpc of A; write the name of a pod of another Vpc
  NAME                  the name of a host outside, with a dot; this machine resolves it

The protocol is tcp, udp, sctp or icmp. arp and nd ask whether something answers for the address, by ARP or by neighbour discovery. Without a protocol, a port is of TCP; without
both it is the first port of a Service, and icmp otherwise. The forms of Kube-OVN's plugin work: POD ADDRESS [MAC] {icmp | tcp PORT | udp PORT | arp [request|reply]}.

Exit codes: 0 delivered, 1 dropped, 2 cannot tell, or an error: wrong arguments, the name of an object that does not exist, no answer of the API server.`

// exitCodes marks a command whose exit code is an answer: an error has the code cannotTell.
const exitCodes = "exit codes"

// traceCommand returns the command `kubectl ko trace`.
func (p *plugin) traceCommand() *cobra.Command {
	raw := false
	var o output
	var q queryFlags
	cmd := &cobra.Command{
		Use:         "trace A B [PROTOCOL] [PORT]",
		Annotations: map[string]string{exitCodes: ""},
		Short:       "why A cannot reach B: the object that stops the packet, and the change that lets it pass",
		Long:        traceHelp,
		Example: `  kubectl ko trace shop/web bank/db 5432
  kubectl ko trace shop/web service/kube-system/kube-dns udp 53
  kubectl ko trace shop/web 203.0.113.9 tcp 443
  kubectl ko trace 203.0.113.9 node//worker-1 30080`,
		RunE: func(cmd *cobra.Command, args []string) error {
			printer, err := o.printer()
			if err != nil {
				return p.unanswered(err)
			}
			query, err := q.parse(args)
			if err != nil {
				return p.unanswered(err)
			}
			if raw {
				if err := p.prove(cmd.Context(), query, true); err != nil {
					return p.unanswered(err)
				}
				return nil
			}
			a, err := p.trace(cmd.Context(), query)
			if err != nil {
				return p.unanswered(err)
			}
			if err := writeAs(p.out, printer, &a, func(out io.Writer) error { return writeAnswer(out, &a) }); err != nil {
				return p.unanswered(err)
			}
			if code := a.ExitCode(); code != 0 {
				return utilexec.CodeExitError{Code: code, Err: errors.New(string(a.Verdict))}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return p.unanswered(err) })
	o.add(cmd, formatText)
	cmd.Flags().BoolVar(&raw, "raw", false, "print the output of ovn-trace and of ofproto/trace instead. "+proofRights)
	q.add(cmd.Flags())
	return cmd
}

// queryFlags are the flags of a query.
type queryFlags struct {
	answer              bool
	port                uint16
	sourceIP, sourceMAC string
}

func (q *queryFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&q.answer, "established", false, "A answers a connection that B has opened to the port: policies let its packets pass, routes and gateways decide")
	f.Uint16Var(&q.port, "source-port", 0, "port of A; without it, one that the system of a client chooses")
	f.StringVar(&q.sourceIP, "source-ip", "", "address from which A sends, instead of its own")
	f.StringVar(&q.sourceMAC, "source-mac", "", "hardware address from which A sends, instead of its own")
}

// parse reads the arguments and flags of a query.
func (q *queryFlags) parse(args []string) (trace.Query, error) {
	query, err := parseQuery(args)
	if err != nil {
		return query, err
	}
	query.Answer, query.SourcePort = query.Answer || q.answer, q.port
	if q.sourceIP != "" {
		if query.SourceAddress, err = netip.ParseAddr(q.sourceIP); err != nil {
			return query, fmt.Errorf("--source-ip: %w", err)
		}
	}
	if q.sourceMAC != "" {
		if query.SourceMAC, err = net.ParseMAC(q.sourceMAC); err != nil {
			return query, fmt.Errorf("--source-mac: %w", err)
		}
	}
	return query, nil
}

// unanswered prints an error, and returns the exit code of a question without an answer.
func (p *plugin) unanswered(err error) error {
	fmt.Fprintln(p.errOut, "error:", err)
	return utilexec.CodeExitError{Code: cannotTell, Err: err}
}

// traceClient returns a client of all kinds that an answer depends on.
func (p *plugin) traceClient() (client.Reader, error) {
	scheme, err := reader.Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(p.config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

func (p *plugin) trace(ctx context.Context, q trace.Query) (trace.Answer, error) {
	c, err := p.traceClient()
	if err != nil {
		return trace.Answer{}, err
	}
	if err := p.choose(ctx, c, &q); err != nil {
		return trace.Answer{}, err
	}
	s, err := reader.Read(ctx, c, q)
	if err != nil {
		return trace.Answer{}, err
	}
	return trace.Run(s, q), nil
}

// choose decides whether the name of B is of a pod, of a Service or of a host outside, and sets the protocol and the port of a query without them.
func (p *plugin) choose(ctx context.Context, c client.Reader, q *trace.Query) error {
	isPod := func(key types.NamespacedName) bool {
		err := c.Get(ctx, key, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}})
		return err == nil || client.IgnoreNotFound(err) != nil
	}
	if isHostName(q.From) && !isPod(q.From.Pod) {
		if err := resolve(ctx, &q.From); err != nil {
			return err
		}
	}
	service := q.To.Service
	if key := q.To.Pod; key.Name != "" && !isPod(key) {
		if isHostName(q.To) { // names of Services have no dots
			if err := resolve(ctx, &q.To); err != nil {
				return err
			}
		} else {
			service = key
		}
	}
	if service.Name == "" {
		q.Protocol = cmp.Or(q.Protocol, defaultProtocol(q.Port))
		return nil
	}
	s := &corev1.Service{}
	err := c.Get(ctx, service, s)
	switch {
	case err == nil:
		q.To = trace.End{Service: service}
	case q.To.Service.Name == "":
		q.Protocol = cmp.Or(q.Protocol, defaultProtocol(q.Port))
		return nil // neither a pod nor a Service: the answer says so
	}
	for _, port := range s.Spec.Ports {
		protocol := strings.ToLower(cmp.Or(string(port.Protocol), trace.TCP))
		if q.Protocol == "" && (q.Port == 0 || q.Port == uint16(port.Port)) { //nolint:gosec // the API server takes 1 to 65535
			q.Protocol, q.Port = protocol, uint16(port.Port) //nolint:gosec // as above
		}
	}
	q.Protocol = cmp.Or(q.Protocol, defaultProtocol(q.Port))
	return nil
}

// isHostName reports whether the name of a pod may also name a host outside.
func isHostName(e trace.End) bool {
	return e.Pod.Namespace == metav1.NamespaceDefault && strings.Contains(e.Pod.Name, ".")
}

// resolve replaces the name of a pod that does not exist by the host of that name.
func resolve(ctx context.Context, e *trace.End) error {
	name := e.Pod.Name
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return fmt.Errorf("%s is neither a pod of namespace %s nor the name of a host: %w", name, e.Pod.Namespace, err)
	}
	*e = trace.End{Host: name}
	for _, a := range addresses {
		e.Addresses = append(e.Addresses, a.Unmap())
	}
	return nil
}

func defaultProtocol(port uint16) string {
	if port == 0 {
		return trace.ICMP
	}
	return trace.TCP
}

// parseQuery reads the arguments of trace.
func parseQuery(args []string) (q trace.Query, err error) {
	if len(args) < 2 {
		return q, errors.New("two ends are needed: kubectl ko trace A B [PROTOCOL] [PORT]")
	}
	if q.From, err = parseEnd(args[0]); err != nil {
		return q, err
	}
	if q.To, err = parseEnd(args[1]); err != nil {
		return q, err
	}
	if q.From.Service.Name != "" {
		return q, errors.New("a Service opens no connections: write the pod that does")
	}
	rest := args[2:]
	if len(rest) > 0 {
		if mac, err := net.ParseMAC(rest[0]); err == nil { // as in Kube-OVN's plugin
			q.TargetMAC, rest = mac, rest[1:]
		}
	}
	var words []string
	for _, word := range rest {
		words = append(words, strings.Split(strings.ToLower(word), "/")...)
	}
	return q, parseProtocol(&q, words)
}

var protocols = []string{trace.TCP, trace.UDP, trace.SCTP}

// parseProtocol reads a protocol and a port, in any order.
func parseProtocol(q *trace.Query, words []string) error {
	for i, word := range words {
		port, err := strconv.ParseUint(word, 10, 16)
		switch {
		case err == nil && port > 0 && q.Port == 0:
			q.Port = uint16(port)
		case q.Protocol == trace.Neighbour && i == len(words)-1 && (word == "request" || word == "reply"):
			q.Answer = word == "reply"
		case q.Protocol != "":
			return fmt.Errorf("%q is no port: write a number from 1 to 65535", word)
		case word == "arp" || word == "nd":
			q.Protocol = trace.Neighbour
		case word == trace.ICMP || slices.Contains(protocols, word):
			q.Protocol = word
		default:
			return fmt.Errorf("%q is neither a protocol nor a port: write tcp, udp, sctp, icmp or arp, and a number from 1 to 65535", word)
		}
	}
	withPorts := slices.Contains(protocols, q.Protocol)
	switch {
	case q.Protocol != "" && !withPorts && q.Port != 0:
		return fmt.Errorf("%s has no ports: leave %d out", q.Protocol, q.Port)
	case withPorts && q.Port == 0 && q.To.Service.Name == "":
		return fmt.Errorf("which port? write one after %s", q.Protocol)
	}
	return nil
}

// parseEnd reads A or B.
func parseEnd(text string) (trace.End, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return trace.End{Address: addr.Unmap().WithZone("")}, nil
	}
	parts := strings.Split(text, "/")
	if labels := strings.Split(text, "."); len(labels) > 2 && labels[2] == "svc" && len(parts) == 1 { // a name of the cluster's DNS
		parts = []string{"service", labels[1], labels[0]}
	}
	switch {
	case parts[0] == "node" && len(parts) == 3 && parts[1] == "" && parts[2] != "":
		return trace.End{Node: parts[2]}, nil
	case (parts[0] == "service" || parts[0] == "svc") && (len(parts) == 2 || len(parts) == 3) && parts[len(parts)-1] != "":
		key := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: parts[len(parts)-1]}
		if len(parts) == 3 {
			key.Namespace = parts[1]
		}
		return trace.End{Service: key}, nil
	case parts[0] == "pod" && len(parts) == 3:
		parts = parts[1:]
	}
	if len(parts) > 2 || slices.Contains(parts, "") {
		return trace.End{}, fmt.Errorf("%q is neither NAMESPACE/POD, node//NODE, service/NAMESPACE/SERVICE nor an address", text)
	}
	if len(parts) == 1 {
		parts = []string{metav1.NamespaceDefault, parts[0]}
	}
	return trace.End{Pod: types.NamespacedName{Namespace: parts[0], Name: parts[1]}}, nil
}

// marks precede the sentences of steps.
var marks = map[trace.Effect]string{trace.Passes: "ok", trace.Changes: "->", trace.Drops: "DROP", trace.Unclear: "?", trace.Notes: ""}

// writeAnswer writes an answer for people.
func writeAnswer(out io.Writer, a *trace.Answer) error {
	var b strings.Builder
	for i := range a.Traces {
		t := &a.Traces[i]
		if i > 0 && same(&a.Traces[0], t) {
			fmt.Fprintf(&b, "\n%s: the same, from %s to %s\n", t.Family, t.Source, t.Destination)
			continue
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		writeTrace(&b, a, t)
	}
	if a.Difference != "" {
		fmt.Fprintf(&b, "\nThe families differ: %s\n", a.Difference)
	}
	if len(a.Unread) > 0 {
		b.WriteString("\nNot permitted to you, so that parts of the answer may be missing:\n")
		for _, u := range a.Unread {
			fmt.Fprintf(&b, "  %s\n", u)
		}
	}
	_, err := io.WriteString(out, b.String())
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func writeTrace(b *strings.Builder, a *trace.Answer, t *trace.Trace) {
	port := ""
	if t.Port != 0 {
		port = " " + strconv.Itoa(int(t.Port))
	}
	fmt.Fprintf(b, "%s, %s%s, %s to %s\n", t.Family, t.Protocol, port, describeEnd(a.From, t.Source), describeEnd(a.To, t.Destination))
	for _, s := range t.Steps {
		fmt.Fprintf(b, "  %-4s  %s\n", marks[s.Effect], plain(s.Text))
	}
	fmt.Fprintf(b, "%s", map[trace.Verdict]string{trace.Delivered: "Delivered", trace.Dropped: "Dropped", trace.CannotTell: "Cannot tell"}[t.Verdict])
	if t.DecidedBy != nil && t.Verdict == trace.Dropped {
		fmt.Fprintf(b, " by %s", t.DecidedBy)
		if t.DecidedBy.Rule != "" {
			fmt.Fprintf(b, ", %s", t.DecidedBy.Rule)
		}
	}
	b.WriteByte('\n')
	if t.Change != "" {
		fmt.Fprintf(b, "Change: %s\n", plain(t.Change))
	}
}

func describeEnd(name string, addr netip.Addr) string {
	if !addr.IsValid() || name == addr.String() {
		return name
	}
	return name + " (" + addr.String() + ")"
}

// same reports whether two traces have the same steps but for addresses: the same objects decide in the same order, for the same number of endpoints.
func same(a, b *trace.Trace) bool {
	outcomes := func(t *trace.Trace) map[trace.Verdict]int {
		counts := map[trace.Verdict]int{}
		for _, e := range t.Endpoints {
			counts[e.Verdict]++
		}
		return counts
	}
	if a.Verdict != b.Verdict || len(a.Steps) != len(b.Steps) || !maps.Equal(outcomes(a), outcomes(b)) {
		return false
	}
	for i := range a.Steps {
		x, y := a.Steps[i], b.Steps[i]
		if x.Effect != y.Effect || (x.Object == nil) != (y.Object == nil) || x.Object != nil && *x.Object != *y.Object {
			return false
		}
	}
	return true
}
