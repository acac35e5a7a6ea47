// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace is the namespace of the operator and its operands.
const Namespace = "kube-system"

// PodsOf returns the pods of one of Kiln's workloads.
func (c *Cluster) PodsOf(ctx context.Context, workload string) ([]corev1.Pod, error) {
	list, err := c.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + workload})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", workload, err)
	}
	return list.Items, nil
}

// NBRow is a row of the northbound database: values by column, with sets and maps as Go types.
type NBRow map[string]any

// NBList reads columns of a table with ovn-nbctl in a pod of the database, so that it returns the stored rows and not a
// controller's cache.
func (c *Cluster) NBList(ctx context.Context, table, columns string) ([]NBRow, error) {
	pods, err := c.PodsOf(ctx, "ovn-central-nb")
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, errors.New("no pod of ovn-central-nb")
	}
	var out string
	for i := range pods { // only the leader answers; ovn-nbctl on another member times out
		out, err = c.Exec(ctx, &pods[i], "ovn-nbctl", "--timeout=5", "--format=json", "--data=json", "--columns="+columns, "list", table)
		if err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	var parsed struct {
		Headings []string `json:"headings"`
		Data     [][]any  `json:"data"`
	}
	if err := json.Unmarshal([]byte(out), &parsed); err != nil {
		return nil, fmt.Errorf("parse table %s: %w", table, err)
	}
	rows := make([]NBRow, 0, len(parsed.Data))
	for _, cells := range parsed.Data {
		row := NBRow{}
		for i, heading := range parsed.Headings {
			row[heading] = fromOVSDB(cells[i])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// fromOVSDB converts a value in the notation of RFC 7047, section 5.1, to strings, []any and map[string]any.
func fromOVSDB(v any) any {
	pair, ok := v.([]any)
	if !ok || len(pair) != 2 {
		return v
	}
	switch pair[0] {
	case "set":
		members, _ := pair[1].([]any)
		set := make([]any, 0, len(members))
		for _, m := range members {
			set = append(set, fromOVSDB(m))
		}
		return set
	case "map":
		entries, _ := pair[1].([]any)
		m := map[string]any{}
		for _, e := range entries {
			if kv, ok := e.([]any); ok && len(kv) == 2 {
				m[fmt.Sprint(kv[0])] = kv[1]
			}
		}
		return m
	case "uuid":
		return pair[1]
	}
	return v
}
