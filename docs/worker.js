// Browsers start no workers for pages opened from the file system. Search needs one: there, a hidden frame stands in.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html><title>worker</title>"
      this.postMessage = (data) => waiting.push(data)
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.src = new URL(address, location)
        script.addEventListener("load", () => {
          this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
          waiting.forEach((data) => this.postMessage(data))
        })
        inside.document.body.append(script)
      }, { once: true })
      document.body.append(frame)
    }
  }
}
