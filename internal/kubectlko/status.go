// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/envcheck"
)

// Status is the output of `kubectl ko status -o json`.
type Status struct {
	// Healthy is true if the OVNCluster is Available and not Degraded, its current generation is observed, and every node has a network.
	Healthy bool `json:"healthy"`
	// Settled is true if, in addition, the operator has nothing to do.
	Settled    bool                       `json:"settled"`
	Conditions []metav1.Condition         `json:"conditions"`
	Versions   string                     `json:"versions,omitempty"`
	Components []v1alpha1.ComponentStatus `json:"components"`
	Northbound v1alpha1.DatabaseStatus    `json:"northbound"`
	Southbound v1alpha1.DatabaseStatus    `json:"southbound"`
	Upgrade    v1alpha1.UpgradeStatus     `json:"upgrade"`
	// NodesWithoutNetwork are the Linux nodes whose agent does not report that pods get a network.
	NodesWithoutNetwork []Trouble `json:"nodesWithoutNetwork"`
	// NotReady are the objects of kubeovn.io whose condition Ready is False.
	NotReady []Trouble `json:"notReady"`
	// FalseConditions are the other conditions of these objects that are False, such as GatewayReady, unless their message is that of Ready.
	FalseConditions []Trouble `json:"falseConditions"`
	// PodPorts are the events of pods whose port in Open vSwitch was missing: the API server keeps them for an hour.
	PodPorts []Trouble `json:"podPorts"`
}

// Trouble is an object that needs attention.
type Trouble struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Condition string `json:"condition,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

// maxRows is the number of troubles of each kind that the text lists.
const maxRows = 20

// clusterStatus returns the command `kubectl ko status`.
func (p *plugin) clusterStatus() *cobra.Command {
	var wait bool
	var timeout time.Duration
	var o output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Conditions, components, versions, databases, nodes without network, objects that need attention, and pods whose port was missing",
		Long: "Prints the state of the network from the API: components need not respond.\n\n" +
			"Exit codes: 0 if the OVNCluster is Available and not Degraded and every node has a network, 1 otherwise. Objects that are not ready do\n" +
			"not change it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			printer, err := o.printer()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			if wait {
				if err := p.awaitSettled(ctx); err != nil {
					return err
				}
			}
			return p.printStatus(cmd.Context(), printer)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&wait, "wait", false, "wait until the state is healthy and the operator has nothing to do")
	f.DurationVar(&timeout, "timeout", 0, "limit of --wait; 0 for none")
	o.add(cmd, formatText)
	return cmd
}

// awaitSettled waits for a settled state and prints each new reason to wait to the error output.
func (p *plugin) awaitSettled(ctx context.Context) error {
	said := ""
	return p.follow(ctx, func(oc *v1alpha1.OVNCluster) (bool, error) {
		s := statusOf(oc)
		if s.Settled {
			var err error
			if s.NodesWithoutNetwork, err = p.nodesWithoutNetwork(ctx); err != nil {
				return false, err
			}
			if len(s.NodesWithoutNetwork) == 0 {
				return true, nil
			}
		}
		if waits := s.waits(); waits != said {
			said = waits
			fmt.Fprintf(p.errOut, "waiting: %s\n", plain(waits))
		}
		return false, nil
	})
}

// waits returns why the state is not settled.
func (s *Status) waits() string {
	for _, t := range []struct {
		kind string
		want metav1.ConditionStatus
	}{
		{v1alpha1.ConditionDegraded, metav1.ConditionFalse}, {v1alpha1.ConditionProgressing, metav1.ConditionFalse}, {v1alpha1.ConditionAvailable, metav1.ConditionTrue},
	} {
		if c := meta.FindStatusCondition(s.Conditions, t.kind); c != nil && c.Status != t.want {
			return fmt.Sprintf("%s is %s: %s", t.kind, c.Status, c.Message)
		}
	}
	for _, n := range s.NodesWithoutNetwork {
		return fmt.Sprintf("node %s: %s", n.Name, n.Message)
	}
	return "the operator has not observed the OVNCluster yet"
}

// statusOf returns the state that the OVNCluster has.
func statusOf(oc *v1alpha1.OVNCluster) *Status {
	st := &oc.Status
	is := func(kind string, want metav1.ConditionStatus) bool {
		return meta.IsStatusConditionPresentAndEqual(st.Conditions, kind, want)
	}
	s := &Status{
		Conditions: st.Conditions, Versions: st.Versions, Components: st.Components, Northbound: st.Northbound, Southbound: st.Southbound, Upgrade: st.Upgrade,
		NodesWithoutNetwork: []Trouble{}, NotReady: []Trouble{}, FalseConditions: []Trouble{}, PodPorts: []Trouble{},
	}
	s.Healthy = st.ObservedGeneration == oc.Generation && is(v1alpha1.ConditionAvailable, metav1.ConditionTrue) &&
		!is(v1alpha1.ConditionDegraded, metav1.ConditionTrue)
	s.Settled = s.Healthy && is(v1alpha1.ConditionProgressing, metav1.ConditionFalse)
	return s
}

// readStatus reads the state of the network.
func (p *plugin) readStatus(ctx context.Context) (*Status, error) {
	oc, err := p.cluster(ctx)
	if err != nil {
		return nil, err
	}
	s := statusOf(oc)
	if s.NodesWithoutNetwork, err = p.nodesWithoutNetwork(ctx); err != nil {
		return nil, err
	}
	if s.NotReady, s.FalseConditions, err = p.objectTroubles(ctx); err != nil {
		return nil, err
	}
	if s.PodPorts, err = p.podPorts(ctx); err != nil {
		return nil, err
	}
	if len(s.NodesWithoutNetwork) > 0 {
		s.Healthy, s.Settled = false, false
	}
	return s, nil
}

// printStatus prints the state, and returns an error if it is not healthy.
func (p *plugin) printStatus(ctx context.Context, printer printers.ResourcePrinter) error {
	s, err := p.readStatus(ctx)
	if err != nil {
		return err
	}
	if err := writeAs(p.out, printer, s, s.write); err != nil {
		return err
	}
	if !s.Healthy {
		return errors.New("the network needs attention: " + s.waits())
	}
	return nil
}

// nodesWithoutNetwork returns the Linux nodes without the condition NetworkUnavailable=False, which the agent of a node writes.
func (p *plugin) nodesWithoutNetwork(ctx context.Context) ([]Trouble, error) {
	list, err := p.pods.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "=linux"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	troubles := []Trouble{}
	for i := range list.Items {
		n := &list.Items[i]
		t := Trouble{Kind: "Node", Name: n.Name, Reason: "NoReport", Message: "its agent has not reported a network yet: see the pods kube-ovn-cni and ovs-ovn of the node"}
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeNetworkUnavailable })
		if at >= 0 {
			c := n.Status.Conditions[at]
			if c.Status == corev1.ConditionFalse {
				continue
			}
			t.Reason, t.Message = c.Reason, c.Message
		}
		troubles = append(troubles, t)
	}
	return troubles, nil
}

// objectTroubles returns the objects of kubeovn.io/v1 with Ready=False, and their other conditions that are False. It skips the IPs that record the
// addresses of pods and nodes, which have no conditions.
func (p *plugin) objectTroubles(ctx context.Context) (notReady, others []Trouble, err error) {
	notReady, others = []Trouble{}, []Trouble{}
	ofUsers, err := labels.Parse(fmt.Sprintf("%s notin (%s, %s)", kubeovnv1.LabelReserved, kubeovnv1.ReservedForPod, kubeovnv1.ReservedForOwner))
	if err != nil {
		return nil, nil, fmt.Errorf("select IPs: %w", err)
	}
	for _, kind := range envcheck.Kinds() {
		var options []client.ListOption
		if kind.Kind == "IP" {
			options = append(options, client.MatchingLabelsSelector{Selector: ofUsers})
		}
		items, err := envcheck.ListUntyped(ctx, p.objects, kubeovnv1.GroupVersion.WithKind(kind.Kind), options...)
		if err != nil {
			return nil, nil, err
		}
		for i := range items {
			own, rest := troublesOf(kind.Kind, &items[i])
			notReady, others = append(notReady, own...), append(others, rest...)
		}
	}
	return notReady, others, nil
}

// troublesOf returns the condition Ready of an object if it is False, and the other conditions that are False. It skips those with the message of
// Ready: a condition such as Validated is often its cause.
func troublesOf(kind string, o *unstructured.Unstructured) (notReady, others []Trouble) {
	conditions := conditionsOf(o)
	cause := ""
	if c := meta.FindStatusCondition(conditions, kubeovnv1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		cause = c.Message
	}
	for _, c := range conditions {
		t := Trouble{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Condition: c.Type, Reason: c.Reason, Message: c.Message}
		switch {
		case c.Status != metav1.ConditionFalse:
		case c.Type == kubeovnv1.ConditionReady:
			notReady = append(notReady, t)
		case cause == "" || c.Message != cause:
			others = append(others, t)
		}
	}
	return notReady, others
}

// podPorts returns the events of pods whose port in Open vSwitch was missing, which agents report.
func (p *plugin) podPorts(ctx context.Context) ([]Trouble, error) {
	troubles := []Trouble{}
	for _, reason := range []string{kubeovnv1.ReasonPortMissing, kubeovnv1.ReasonPortRestored} {
		list, err := p.pods.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=" + reason})
		if err != nil {
			return nil, fmt.Errorf("list events: %w", err)
		}
		for i := range list.Items {
			e := &list.Items[i]
			troubles = append(troubles, Trouble{
				Kind: "Pod", Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name, Reason: e.Reason, Message: e.Message,
			})
		}
	}
	return troubles, nil
}

// conditionsOf returns the conditions of an object.
func conditionsOf(o *unstructured.Unstructured) []metav1.Condition {
	var decoded struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &decoded); err != nil {
		return nil
	}
	return decoded.Status.Conditions
}

// plain replaces control characters, with which the messages of a stolen node could write to the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// printable is text of several lines without the other control characters, which could change the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, text)
}

// write writes the text.
func (s *Status) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range s.Conditions {
		fmt.Fprintf(w, "%s:\t%s\t%s\n", c.Type, c.Status, plain(c.Message))
	}
	if s.Upgrade.Stage != "" {
		fmt.Fprintf(w, "upgrade:\t%s\t%s\n", s.Upgrade.Stage, plain(s.Upgrade.Message))
	}
	fmt.Fprintln(w, "\nCOMPONENT\tREADY\tUPDATED\tVERSIONS\tMESSAGE")
	for i := range s.Components {
		c := &s.Components[i]
		fmt.Fprintf(w, "%s\t%d/%d\t%d/%d\t%s\t%s\n", c.Name, c.Ready, c.Desired, c.Updated, c.Desired, plain(versionsOf(c)), plain(c.Message))
	}
	fmt.Fprintln(w, "\nDATABASE\tLEADER\tTERM\tMEMBERS\tLAST BACKUP")
	for _, db := range []struct {
		name   string
		status *v1alpha1.DatabaseStatus
	}{{"northbound", &s.Northbound}, {"southbound", &s.Southbound}} {
		members := make([]string, 0, len(db.status.Members))
		for _, m := range db.status.Members {
			members = append(members, m.Node+" ("+cmp.Or(m.Role, "no answer")+")")
		}
		backup := ""
		if b := db.status.LastBackup; b != nil {
			backup = b.Time.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", db.name, cmp.Or(db.status.Leader, "none"), db.status.Term, strings.Join(members, ", "), backup)
	}
	writeTroubles(w, "NODE WITHOUT NETWORK", s.NodesWithoutNetwork)
	writeTroubles(w, "OBJECT THAT IS NOT READY", s.NotReady)
	writeTroubles(w, "OBJECT WITH A FALSE CONDITION", s.FalseConditions)
	writeTroubles(w, "POD WHOSE PORT WAS MISSING", s.PodPorts)
	return w.Flush()
}

// writeTroubles writes the first troubles of each kind, and how many more there are.
func writeTroubles(w io.Writer, title string, troubles []Trouble) {
	if len(troubles) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\tREASON\tMESSAGE\n", title)
	count := map[string]int{}
	for _, t := range troubles {
		if count[t.Kind]++; count[t.Kind] > maxRows {
			continue
		}
		name := strings.TrimPrefix(t.Namespace+"/"+t.Name, "/")
		if t.Kind != "Node" {
			name = t.Kind + " " + name
		}
		reason := t.Reason
		if t.Condition != "" && t.Condition != kubeovnv1.ConditionReady {
			reason = t.Condition + " " + reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, plain(reason), plain(t.Message))
	}
	for kind, n := range count {
		if n > maxRows {
			fmt.Fprintf(w, "%s: %d more\t\tsee `kubectl ko status -o json`\n", kind, n-maxRows)
		}
	}
}

// versionsOf returns the versions of a component's pods in one word for each program.
func versionsOf(c *v1alpha1.ComponentStatus) string {
	all := make([]string, 0, len(c.Versions))
	for _, v := range c.Versions {
		var programs []string
		for _, p := range []struct{ name, version string }{{"", v.Kiln}, {"OVN ", v.OVN}, {"OVS ", v.OpenVSwitch}} {
			if p.version != "" {
				programs = append(programs, p.name+p.version)
			}
		}
		all = append(all, strings.Join(programs, ", "))
	}
	return strings.Join(all, "; ")
}
