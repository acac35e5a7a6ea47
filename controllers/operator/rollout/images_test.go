// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"testing"
)

func TestImagesInTheOrderInWhichTheyWereWanted(t *testing.T) {
	images := []string{}
	for _, image := range []string{"a", "b", "c", "a", "b"} {
		images = RecordImage(images, image)
	}
	if !slices.Equal(images, []string{"a", "b", "c"}) {
		t.Errorf("recorded %v", images)
	}
	if !NewerImage(images, "b", "c") || NewerImage(images, "b", "a") || NewerImage(images, "b", "b") || NewerImage(images, "b", "unknown") {
		t.Error("c alone is newer than b")
	}
	if images = SettleImages(images, "a"); !slices.Equal(images, []string{"a"}) {
		t.Errorf("after going back there is %v", images)
	}
	for i := range 2 * rememberedImages {
		images = RecordImage(images, string(rune('b'+i)))
	}
	if len(images) != rememberedImages || images[rememberedImages-1] != string(rune('a'+2*rememberedImages)) {
		t.Errorf("the newest are remembered: %v", images)
	}
}
