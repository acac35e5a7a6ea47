// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/envcheck"
)

const (
	// nodesAtOnce is the number of nodes from which files are copied at the same time.
	nodesAtOnce = 4
	// largestLog and largestDatabase bound the bytes of a log and of the copy of a database.
	largestLog, largestDatabase = 32 << 20, 512 << 20
	// shownErrors is the number of errors that are printed; the archive has all.
	shownErrors = 10
	errorsFile  = "errors.txt"
)

// dumpFlags select what `kubectl ko sysdump` reads.
type dumpFlags struct {
	namespaces, nodes []string
	maxNodes          int
	logLines          int64
	databases         bool
	timeout           time.Duration
}

// sysdumpCommand returns the command `kubectl ko sysdump`.
func (p *plugin) sysdumpCommand() *cobra.Command {
	var o dumpFlags
	cmd := &cobra.Command{
		Use:   "sysdump [FILE]",
		Short: "Writes one archive for a report of a defect: objects, events, logs, databases, the state of nodes",
		Long: "It only reads, and continues if a part cannot be read: errors.txt in the archive lists these. The archive has names and addresses of the\n" +
			"whole cluster. It has no Secrets, no values of environment variables, and no annotations of other programs. Read it before you publish it.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "kiln-sysdump-" + time.Now().UTC().Format("20060102T150405Z") + archiveSuffix
			if len(args) > 0 {
				file = args[0]
			}
			return p.sysdump(cmd.Context(), file, o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.namespaces, "namespaces", nil, "namespaces of Services, EndpointSlices, policies and events; by default all")
	f.StringSliceVar(&o.nodes, "node", nil, "nodes whose state and logs are read, instead of the first --max-nodes; can be repeated")
	f.IntVar(&o.maxNodes, "max-nodes", 20, "number of nodes whose state and logs are read; nodes without a network are first")
	f.Int64Var(&o.logLines, "log-lines", 20000, "number of lines of each log")
	f.BoolVar(&o.databases, "databases", true, "copy OVN's databases")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time after which the archive is written without the missing parts")
	return cmd
}

func (o *dumpFlags) check(file string) error {
	switch {
	case !strings.HasSuffix(file, archiveSuffix):
		return fmt.Errorf("%s: the archive is compressed: name a file that ends with %s", file, archiveSuffix)
	case o.maxNodes < 1 || o.logLines < 1 || o.timeout <= 0:
		return errors.New("--max-nodes, --log-lines and --timeout must be greater than 0")
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists: name another file", file)
	}
	return nil
}

func (p *plugin) sysdump(ctx context.Context, file string, o dumpFlags) error {
	if err := o.check(file); err != nil {
		return err
	}
	directory, err := os.MkdirTemp(filepath.Dir(file), ".kubectl-ko-sysdump-*") // only the user can read it
	if err != nil {
		return fmt.Errorf("make a directory next to the archive: %w", err)
	}
	defer os.RemoveAll(directory)
	d := &dump{plugin: p, dumpFlags: o, directory: directory}
	bounded, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("the time of --timeout=%s has passed", o.timeout))
	defer cancel()
	d.collect(bounded)
	if ctx.Err() != nil {
		return fmt.Errorf("no archive is written: %w", context.Cause(ctx))
	}
	if len(d.failures) == d.parts {
		return fmt.Errorf("nothing could be read, so no archive is written: %s", d.failures[0])
	}
	if err := d.writeErrors(); err != nil {
		return err
	}
	if err := p.save(file, func(out *os.File) error {
		return writeArchive(out, directory, strings.TrimSuffix(filepath.Base(file), archiveSuffix))
	}); err != nil {
		return err
	}
	d.summarize()
	return nil
}

// dump is the content of an archive, in a local directory.
type dump struct {
	*plugin
	dumpFlags
	directory string

	mu       sync.Mutex
	parts    int
	failures []string // of parts
	notes    []string // about parts that are left out
}

// part reads a part of the archive, and records its failure. It may be called concurrently.
func (d *dump) part(ctx context.Context, name string, read func() error) {
	err := context.Cause(ctx)
	if err == nil {
		if err = read(); err != nil && ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.parts++
	if err != nil {
		d.failures = append(d.failures, name+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// file is part for a file of the archive.
func (d *dump) file(ctx context.Context, name string, write func(io.Writer) error) {
	d.part(ctx, name, func() error { return inFile(filepath.Join(d.directory, name), write) })
}

// collect reads everything. What needs only the API server comes first: pods of a faulty cluster may answer late.
func (d *dump) collect(ctx context.Context) {
	d.printed(ctx, "version.txt", func(p *plugin) error { return p.printVersions(ctx) })
	d.file(ctx, "status.txt", func(out io.Writer) error {
		s, err := d.readStatus(ctx)
		if err != nil {
			return err
		}
		return s.write(out)
	})
	for _, db := range databases {
		d.printed(ctx, db.name+"-status.txt", func(p *plugin) error { return p.status(ctx, db) })
	}
	d.objectsOf(ctx)
	pods := d.logsOf(ctx)
	var nodes errgroup.Group
	nodes.SetLimit(nodesAtOnce)
	for i := range pods {
		nodes.Go(func() error {
			d.part(ctx, "node "+pods[i].Spec.NodeName, func() error {
				return d.collectNode(ctx, &pods[i], filepath.Join(d.directory, "nodes"), slices.Concat(nodeState, datapathState))
			})
			return nil
		})
	}
	_ = nodes.Wait()
	for _, db := range databases {
		d.printed(ctx, db.name+"-dbstatus.txt", func(p *plugin) error { return p.storage(ctx, db) })
		if d.databases {
			d.file(ctx, filepath.Join("databases", db.stem+".db"), func(out io.Writer) error { return d.copyDatabase(ctx, db, out) })
		}
	}
}

// datapathState are programs on nodes that the group linux does not have: connection tracking and counters of Open vSwitch.
var datapathState = []nodeCommand{
	{"conntrack", []string{"sh", "-c", "conntrack -C 2>&1; conntrack -S 2>&1; true"}},
	{"datapath", []string{"ovs-appctl", "--timeout=30", "dpctl/show", "-s"}},
	{"datapath-conntrack", []string{"ovs-appctl", "--timeout=60", "dpctl/ct-stats-show"}},
	{"coverage", []string{"ovs-appctl", "--timeout=30", "coverage/show"}},
	{"memory", []string{"ovs-appctl", "--timeout=30", "memory/show"}},
}

// printed writes the output of a command of this plugin to a file.
func (d *dump) printed(ctx context.Context, name string, print func(*plugin) error) {
	d.file(ctx, name, func(out io.Writer) error {
		p := *d.plugin
		p.stdin, p.out, p.errOut = false, out, out
		return print(&p)
	})
}

// copyDatabase copies a database from its leader, without a change of the cluster.
func (d *dump) copyDatabase(ctx context.Context, db ovnDatabase, out io.Writer) error {
	pod, err := d.leader(ctx, db)
	if err != nil {
		return err
	}
	return d.output(ctx, pod, []string{"ovsdb-client", "backup", "unix:/run/ovn/" + db.stem + ".sock", db.schema}, &limited{out, largestDatabase})
}

// limited is a writer that fails after a number of bytes.
type limited struct {
	io.Writer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= len(b); l.left < 0 {
		return 0, errors.New("it is too large")
	}
	return l.Writer.Write(b)
}

// Where objects of a kind are read.
const (
	clusterWide = iota
	inKilnNamespace
	inNamespaces // of --namespaces
)

// dumpedKind is a kind whose objects are in the archive.
type dumpedKind struct {
	group, kind string
	where       int
}

// dumpedKinds are the kinds besides those of kubeovn.io/v1. Secrets and ConfigMaps are not among them.
var dumpedKinds = []dumpedKind{
	{v1alpha1.GroupVersion.Group, "OVNCluster", clusterWide},
	{"", "Node", clusterWide},
	{"", "Namespace", clusterWide},
	{"", "Pod", inKilnNamespace},
	{"apps", "DaemonSet", inKilnNamespace},
	{"apps", "Deployment", inKilnNamespace},
	{"coordination.k8s.io", "Lease", inKilnNamespace},
	{"", "Event", inNamespaces},
	{"", "Service", inNamespaces},
	{"discovery.k8s.io", "EndpointSlice", inNamespaces},
	{"networking.k8s.io", "NetworkPolicy", inNamespaces},
	{"policy.networking.k8s.io", "AdminNetworkPolicy", clusterWide},
	{"policy.networking.k8s.io", "BaselineAdminNetworkPolicy", clusterWide},
	{"policy.networking.k8s.io", "ClusterNetworkPolicy", clusterWide},
}

func (d *dump) objectsOf(ctx context.Context) {
	kinds := slices.Clone(dumpedKinds)
	for _, k := range envcheck.Kinds() {
		where := clusterWide
		if k.Namespaced {
			where = inNamespaces
		}
		kinds = append(kinds, dumpedKind{kubeovnv1.GroupVersion.Group, k.Kind, where})
	}
	for _, k := range kinds {
		mapping, err := d.objects.RESTMapper().RESTMapping(schema.GroupKind{Group: k.group, Kind: k.kind})
		if meta.IsNoMatchError(err) {
			continue // an optional kind
		}
		name := filepath.Join("objects", k.kind+".yaml")
		if err != nil {
			d.part(ctx, name, func() error { return fmt.Errorf("find the kind: %w", err) })
			continue
		}
		d.file(ctx, name, func(out io.Writer) error { return d.writeObjects(ctx, mapping.GroupVersionKind, k.where, out) })
	}
}

// writeObjects writes the objects of a kind as YAML documents.
func (d *dump) writeObjects(ctx context.Context, kind schema.GroupVersionKind, where int, out io.Writer) error {
	namespaces := []string{""}
	switch {
	case where == inKilnNamespace:
		namespaces = []string{d.namespace}
	case where == inNamespaces && len(d.namespaces) > 0:
		namespaces = slices.Clone(d.namespaces)
		if kind.Kind == "Event" { // also the events of Kiln's pods, and of objects without a namespace
			namespaces = append(namespaces, d.namespace, corev1.NamespaceDefault)
		}
	}
	slices.Sort(namespaces)
	for _, namespace := range slices.Compact(namespaces) {
		items, err := envcheck.ListUntyped(ctx, d.objects, kind, client.InNamespace(namespace))
		if err != nil {
			return err
		}
		for i := range items {
			if kind.Kind == "Namespace" && len(d.namespaces) > 0 && !slices.Contains(d.namespaces, items[i].GetName()) {
				continue
			}
			redact(&items[i])
			text, err := yaml.Marshal(items[i].Object)
			if err != nil {
				return fmt.Errorf("write %s %s: %w", kind.Kind, items[i].GetName(), err)
			}
			if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
	}
	return nil
}

// logsOf copies the logs of Kiln's pods, and returns the pods of Open vSwitch on the selected nodes. Of components on every node it copies only the
// logs of the selected nodes.
func (d *dump) logsOf(ctx context.Context) []corev1.Pod {
	var switches, pods []corev1.Pod
	for _, components := range logGroups {
		for _, component := range components {
			d.part(ctx, "pods of "+component, func() error {
				found, err := d.podsOf(ctx, component)
				if pods = append(pods, found...); component == openVSwitch {
					switches = d.selectNodes(ctx, found)
				}
				return err
			})
		}
	}
	var copies errgroup.Group
	copies.SetLimit(nodesAtOnce)
	for i := range pods {
		pod := &pods[i]
		onNode := func(s corev1.Pod) bool { return s.Spec.NodeName == pod.Spec.NodeName }
		if everywhere := []string{openVSwitch, agent, pinger}; pod.Spec.NodeName == "" ||
			slices.Contains(everywhere, pod.Labels[componentLabel]) && !slices.ContainsFunc(switches, onNode) {
			continue
		}
		copies.Go(func() error {
			limit := int64(largestLog)
			d.part(ctx, "log of "+pod.Name, func() error {
				return d.copyLogs(ctx, pod, filepath.Join(d.directory, "nodes"), corev1.PodLogOptions{TailLines: &d.logLines, LimitBytes: &limit})
			})
			return nil
		})
	}
	_ = copies.Wait()
	return switches
}

// selectNodes returns the pods of Open vSwitch on the nodes of --node, or on the first --max-nodes, beginning with nodes without a network.
func (d *dump) selectNodes(ctx context.Context, pods []corev1.Pod) []corev1.Pod {
	if len(d.nodes) > 0 {
		for _, node := range d.nodes {
			if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node }) {
				d.note("node %s has no pod of %s, so its state is not in the archive", node, openVSwitch)
			}
		}
		return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !slices.Contains(d.nodes, p.Spec.NodeName) })
	}
	troubles, err := d.nodesWithoutNetwork(ctx)
	if err != nil {
		d.note("%v", err)
	}
	last := func(p corev1.Pod) int {
		if slices.ContainsFunc(troubles, func(t Trouble) bool { return t.Name == p.Spec.NodeName }) {
			return 0
		}
		return 1
	}
	selected := slices.SortedFunc(slices.Values(pods), func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.Spec.NodeName, b.Spec.NodeName))
	})
	if len(selected) > d.maxNodes {
		d.note("the state of %d of %d nodes is not in the archive: use --node or --max-nodes", len(selected)-d.maxNodes, len(selected))
		selected = selected[:d.maxNodes]
	}
	return selected
}

// note records a part that is left out.
func (d *dump) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

func (d *dump) writeErrors() error {
	slices.Sort(d.failures)
	text := strings.Join(append(slices.Clone(d.notes), d.failures...), "\n")
	return inFile(filepath.Join(d.directory, errorsFile), func(out io.Writer) error {
		_, err := fmt.Fprintln(out, text)
		return err
	})
}

// summarize prints the parts that are missing in the archive.
func (d *dump) summarize() {
	for _, n := range d.notes {
		fmt.Fprintln(d.errOut, plain(n))
	}
	if len(d.failures) == 0 {
		return
	}
	fmt.Fprintf(d.errOut, "%d of %d parts are not complete (%s in the archive):\n", len(d.failures), d.parts, errorsFile)
	for _, f := range d.failures[:min(len(d.failures), shownErrors)] {
		fmt.Fprintf(d.errOut, "  %.300s\n", plain(f))
	}
	if more := len(d.failures) - shownErrors; more > 0 {
		fmt.Fprintf(d.errOut, "  and %d more\n", more)
	}
}
