// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
)

// background is the number of pods and of policies that exist while something else is measured.
type background struct{ pods, policies int }

func (n background) String() string { return fmt.Sprintf("%d pods, %d policies", n.pods, n.policies) }

// backgroundsOf parses the flag -backgrounds.
func backgroundsOf(list string) (all []background, err error) {
	var last background
	for part := range strings.SplitSeq(list, ",") {
		var n background
		if _, err := fmt.Sscanf(part, "%d:%d", &n.pods, &n.policies); err != nil {
			return nil, fmt.Errorf("-backgrounds %s: %w; pods and policies are written as in 100:0,5000:1000", list, err)
		}
		if n.pods < last.pods || n.policies < last.policies || n.pods-last.pods < perGroup*(n.policies-last.policies) {
			return nil, fmt.Errorf("-backgrounds %s: the numbers must grow, with %d more pods for each policy more", list, perGroup)
		}
		all, last = append(all, n), n
	}
	return all, nil
}

// extend creates the pods and policies that the next background has more than the last one.
func (b *bench) extend(ctx context.Context, last, next background) error {
	inGroups := perGroup * (next.policies - last.policies)
	if _, err := b.grouped(ctx, inGroups, next.policies); err != nil {
		return err
	}
	if _, err := b.grouped(ctx, next.pods-last.pods-inGroups, 0); err != nil {
		return err
	}
	return b.groupPolicies(ctx, last.policies, next.policies)
}
