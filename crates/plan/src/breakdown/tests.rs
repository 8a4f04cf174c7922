use super::*;
use fullshard_pjrt::read_profile;

#[test]
fn scratch() {
        let d = "/work/wa/crates/plan/tests/data";
        let module = Module::decode("hlo_with_config", &std::fs::read(format!("{d}/breakdown.hlo.pb")).unwrap()).unwrap();
        let dev = read_profile(&std::fs::read(format!("{d}/breakdown.xplane.pb")).unwrap()).unwrap();
        let model = fullshard_models::from_file(std::path::Path::new("/work/wa/examples/configs/gpt2_config.json")).unwrap();
        let b = Breakdown::new(&dev, &module, model.as_ref(), 3, Chip::named("h200")).unwrap();
        println!("{} span {:.3} busy {:.3} idle {:.3} over {:.3} unknown {:.3} {:?}", b.device, b.span*1e3, b.busy*1e3, b.idle*1e3, b.overlapped*1e3, b.unknown*1e3, b.matched);
        for k in &b.kinds { println!("  {:20} {:9.3} {:5.1}% {}", k.kind.name(), k.seconds*1e3, k.share*100., k.launches); }
        for k in &b.modules { println!("  {:40} {:5} {:9.3} {:5.1}% {}", k.module, k.backward, k.seconds*1e3, k.share*100., k.launches); }
        for k in b.kernels.iter().take(145) { println!("  {:50} {:?} {:?} {} {} {:9.3}ms x{} {:?} bw {:.2?} {:.0?}TF", k.name, k.op, k.kind, k.module, k.backward, k.seconds*1e3, k.launches, k.bytes.map(|b|b/1000000), k.bandwidth_share, k.flops.map(|f|f/1e12)); }
}
