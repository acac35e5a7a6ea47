// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestReports(t *testing.T) {
	g := NewWithT(t)
	var reports Reports[string, string]

	g.Expect(reports.New("a", "")).To(BeFalse(), "nothing to report")
	g.Expect(reports.New("a", "full")).To(BeTrue())
	g.Expect(reports.New("a", "full")).To(BeFalse(), "reported before")
	g.Expect(reports.New("b", "full")).To(BeTrue(), "of another object")
	g.Expect(reports.New("a", "invalid")).To(BeTrue(), "changed")
	g.Expect(reports.New("a", "")).To(BeFalse(), "resolved")
	g.Expect(reports.New("a", "invalid")).To(BeTrue(), "again after it was resolved")
	g.Expect(reports.Swap("a", "full")).To(Equal("invalid"))

	reports.Forget("a")
	reports.Forget("never reported")
	g.Expect(reports.New("a", "full")).To(BeTrue(), "of a new object of the same name")
	reports.Forget("a")
	reports.Forget("b")
	g.Expect(reports.last).To(BeEmpty(), "objects without a report use memory")
}
