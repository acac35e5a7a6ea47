// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import "slices"

// RecordImage adds an image as the newest if it is not recorded yet.
func RecordImage(images []string, image string) []string {
	if slices.Contains(images, image) {
		return images
	}
	images = append(slices.Clone(images), image)
	return images[max(0, len(images)-rememberedImages):]
}

// SettleImages drops all images that were requested after the image that every component now runs. A later request for one of
// them is an upgrade again.
func SettleImages(images []string, image string) []string {
	return images[:slices.Index(images, image)+1]
}

// rememberedImages is the number of recorded images. A change to an older image is not recognized as a rollback.
const rememberedImages = 10

// NewerImage reports whether an image was requested after the image that the spec requests now.
func NewerImage(images []string, wanted, image string) bool {
	return slices.Contains(images[slices.Index(images, wanted)+1:], image)
}
